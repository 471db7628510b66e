"""NVIDIA MPS: lets the processes of a sweep run kernels on one GPU at the same time.

Without it, they take turns. A daemon that runs already serves every process that uses the GPU, and
is left alone. One that a sweep starts has its own folder, so that it serves this sweep only.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from atomsep.experiments.errors import ExperimentError, causes
from atomsep.experiments.sweeps.processes import count_gpus

PROGRAM = "nvidia-cuda-mps-control"
PIPES, LOGS = "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"
SECONDS = 20
"""Time in which the daemon has to answer."""

ERRORS = ("MPS client", "MPS server")
"""Words in the errors of CUDA when a server has ended, or is not ready for a process."""

QUIT = f'cat > /dev/null; echo quit | {PROGRAM}; rm -rf "$1"'
"""Waits for the end of its input, which comes even if the sweep is killed, then ends the daemon."""


@contextmanager
def share_gpu(device: str) -> Iterator[bool]:
    """Share the GPUs through MPS while the block runs.

    Yields:
        Whether a daemon was started; False if one ran before.

    Raises:
        ExperimentError: there is no GPU or no MPS, or the daemon does not start.
    """
    if device in ("auto", "cuda") and shutil.which(PROGRAM) is None:
        raise ExperimentError(
            f"--mps: there is no program {PROGRAM}, which comes with NVIDIA's driver; leave out "
            f"--mps, and the runs take turns on the GPU"
        )
    if count_gpus(device) == 0:
        raise ExperimentError("--mps needs an NVIDIA GPU; leave it out, or choose another --device")
    if is_running():
        yield False
        return
    with _daemon(Path(tempfile.mkdtemp(prefix="atomsep-mps-"))):
        yield True


def is_running() -> bool:
    """Whether a daemon answers at the place where processes look for one."""
    pipe = Path(os.environ.get(PIPES, "/tmp/nvidia-mps"), "control")
    return pipe.exists() and _control(os.environ, text="get_server_list\n")


def has_lost_server(error: BaseException | None) -> bool:
    """Whether the server of MPS has ended, or an error that says so led to this one.

    If a process is killed while its kernels run, its server ends every other process that it
    serves, and refuses new ones until all of them are gone.

    Example:
        >>> has_lost_server(RuntimeError("the MPS client has been terminated by the server"))
        True
        >>> has_lost_server(RuntimeError("CUDA error: out of memory"))
        False
    """
    return any(words in str(each) for each in causes(error) for words in ERRORS)


@contextmanager
def _daemon(folder: Path) -> Iterator[None]:
    places = {PIPES: str(folder / "pipe"), LOGS: str(folder / "log")}
    # It serves all GPUs: a worker chooses among those that the daemon sees.
    others = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
    before = dict(os.environ)
    guard = subprocess.Popen(
        ["sh", "-c", QUIT, "sh", str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=others | places,
        start_new_session=True,  # Ctrl-C does not reach it
    )
    assert guard.stdin is not None
    try:
        for place in places.values():
            Path(place).mkdir()
        if not _control(others | places, "-d"):
            raise ExperimentError(
                "--mps: the daemon of NVIDIA MPS does not start; leave out --mps, and the runs "
                "take turns on the GPU"
            )
        os.environ.update(places)
        yield
    finally:
        for name in places:
            os.environ.pop(name, None)
        os.environ.update({name: before[name] for name in places if name in before})
        guard.stdin.close()
        with suppress(subprocess.TimeoutExpired):  # it goes on by itself
            guard.wait(SECONDS)


def _control(environment: Mapping[str, str], *options: str, text: str = "") -> bool:
    """Call the program; returns whether it succeeded."""
    nowhere = subprocess.DEVNULL  # not a pipe, which the daemon would keep open
    try:
        done = subprocess.run(
            [PROGRAM, *options],
            input=text.encode(),
            stdout=nowhere,
            stderr=nowhere,
            env=environment,
            timeout=SECONDS,
            start_new_session=True,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0
