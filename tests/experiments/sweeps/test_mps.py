"""NVIDIA MPS, with a program in the place of NVIDIA's that writes down how it is called."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from atomsep.cli.main import STOPPED, main
from atomsep.experiments.errors import ExperimentError
from atomsep.experiments.sweeps import processes
from atomsep.experiments.sweeps.mps import LOGS, PIPES, PROGRAM, share_gpu

STUB = Path(__file__).with_name("stub_worker.py")
CONTROL = """#!/bin/sh
pipe=$CUDA_MPS_PIPE_DIRECTORY/control
if [ "$1" = "-d" ]; then
    [ -d "$CUDA_MPS_LOG_DIRECTORY" ] && mkfifo "$pipe" || exit 1
    echo "start $CUDA_MPS_PIPE_DIRECTORY $CUDA_VISIBLE_DEVICES" >> "$CALLS"
else
    read word
    echo "$word $CUDA_MPS_PIPE_DIRECTORY" >> "$CALLS"
    [ -p "$pipe" ] || exit 1
    [ "$word" != quit ] || rm "$pipe"
fi
"""
Calls = Callable[[], list[list[str]]]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Calls:
    """Install the program, and a GPU; returns how the program was called."""
    program, log = tmp_path / "bin" / PROGRAM, tmp_path / "calls"
    program.parent.mkdir()
    program.write_text(CONTROL)
    program.chmod(0o755)
    log.touch()
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    monkeypatch.setenv("CALLS", str(log))
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.setenv(PIPES, str(tmp_path / "none"))
    monkeypatch.delenv(LOGS, raising=False)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    return lambda: [line.split() for line in log.read_text().splitlines()]


def test_a_daemon_is_started_and_stopped(
    calls: Calls, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,7")
    with share_gpu("auto") as started:
        assert started
        pipes = os.environ[PIPES]
        assert Path(pipes).is_relative_to(tmp_path / "temporary")
        assert Path(os.environ[LOGS]).is_dir()
        assert calls() == [["start", pipes]], "it sees all GPUs"
    assert calls() == [["start", pipes], ["quit", pipes]]
    assert os.environ[PIPES] == str(tmp_path / "none")
    assert LOGS not in os.environ
    assert not list((tmp_path / "temporary").iterdir())


@pytest.mark.parametrize("error", [KeyboardInterrupt, ExperimentError])
def test_it_is_stopped_after_an_error(calls: Calls, error: type[BaseException]) -> None:
    with pytest.raises(error), share_gpu("cuda"):
        raise error
    assert [word for word, *_ in calls()] == ["start", "quit"]


def test_it_is_stopped_when_the_sweep_is_killed(calls: Calls, tmp_path: Path) -> None:
    code = "\n".join(
        [
            "import time",
            "from atomsep.experiments.sweeps import mps",
            "mps.count_gpus = lambda device: 1",
            "with mps.share_gpu('auto'):",
            "    print('started', flush=True)",
            "    time.sleep(60)",
        ]
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"started\n"
        process.kill()
    end = time.monotonic() + 30
    while len(calls()) < 2 and time.monotonic() < end:
        time.sleep(0.01)
    (_, started), (word, stopped) = calls()
    assert (word, stopped) == ("quit", started)


def test_a_daemon_that_runs_is_left_alone(
    calls: Calls, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    os.mkfifo(theirs / "control")
    monkeypatch.setenv(PIPES, str(theirs))
    with share_gpu("auto") as started:
        assert not started
        assert os.environ[PIPES] == str(theirs)
    assert calls() == [["get_server_list", str(theirs)]]
    assert (theirs / "control").exists()


def test_what_a_dead_daemon_left_is_no_daemon(
    calls: Calls, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "none").mkdir()
    (tmp_path / "none" / "control").touch()
    with share_gpu("auto") as started:
        assert started
    assert [word for word, *_ in calls()] == ["get_server_list", "start", "quit"]
    assert (tmp_path / "none" / "control").exists()


def test_ctrl_c_in_a_sweep_stops_it(
    calls: Calls, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The trial of seed 3 waits for the end of the sweep."""
    trace = tmp_path / "trace"
    trace.touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TRACE", str(trace))
    monkeypatch.setattr(processes, "COMMAND", [sys.executable, str(STUB)])

    def interrupt() -> None:
        while "trains" not in trace.read_text():
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(SystemExit) as exit:
        main(
            [
                "sweep",
                "synthetic",
                "--tiny",
                "--methods",
                "plain",
                "--seeds",
                "3,",
                "--mps",
                "--jobs",
                "auto",
            ]
        )
    thread.join()
    assert exit.value.code == STOPPED
    (first, started), (last, stopped) = calls()
    assert (first, last) == ("start", "quit")
    assert started == stopped
    assert f"pipes {started}" in trace.read_text(), "the worker used it"


def test_without_the_program_or_a_gpu_it_is_refused(
    calls: Calls, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with pytest.raises(ExperimentError, match="--mps needs an NVIDIA GPU"), share_gpu("cpu"):
        pass
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    with pytest.raises(ExperimentError, match="--mps needs an NVIDIA GPU"), share_gpu("auto"):
        pass
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    (tmp_path / "bin" / PROGRAM).write_text("#!/bin/sh\nexit 1\n")
    with pytest.raises(ExperimentError, match="MPS does not start; leave out"), share_gpu("auto"):
        pass
    assert os.environ[PIPES] == str(tmp_path / "none")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ExperimentError, match=f"there is no program {PROGRAM}"), share_gpu("auto"):
        pass
    assert not list((tmp_path / "temporary").iterdir())
