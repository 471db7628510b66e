"""The sweep's end of its worker processes."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from atomsep.experiments.entry_points import IMPORTED
from atomsep.experiments.machine import Machine
from atomsep.experiments.runs import RunKey
from atomsep.experiments.sweeps.memory import cores

COMMAND = [sys.executable, "-m", "atomsep.experiments.sweeps.worker"]


class WorkerProcess:
    """The sweep's end of a worker.

    Attributes:
        ready: whether it has started and takes trials.
        key: the trial that it trains.
        beside: the most trials that shared its device with that one at a time.
        leaving: whether it was dismissed.
    """

    def __init__(self, number: int, jobs: int, device: str) -> None:
        self.number, self.ready, self.leaving = number, False, False
        self.key: RunKey | None = None
        self.since = time.monotonic()
        self.beside = 0
        self.errors = tempfile.TemporaryFile()  # noqa: SIM115
        self.rest = b""
        self.process = subprocess.Popen(
            COMMAND,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            env=os.environ | environment(number, jobs, device),
            start_new_session=True,  # Ctrl-C reaches the sweep, which tells its workers
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.trials, self.answers = self.process.stdin, self.process.stdout

    def give(self, key: RunKey, root: Path, machine: Machine) -> None:
        """Send a trial."""
        trial = {
            "imports": IMPORTED,
            "key": key.record(),
            "root": str(root),
            "machine": {**dataclasses.asdict(machine), "data": str(machine.data)},
        }
        self.key, self.since = key, time.monotonic()
        with suppress(BrokenPipeError):  # it has died; the end of its answers tells the sweep
            self.trials.write(json.dumps(trial).encode() + b"\n")
            self.trials.flush()

    @property
    def free(self) -> bool:
        """Whether it waits for a trial."""
        return self.ready and self.key is None and not self.leaving

    def seconds(self) -> float:
        """Seconds since it was started or given its trial."""
        return time.monotonic() - self.since

    def receive(self) -> list[dict[str, Any]] | None:
        """The answers that have arrived; None if there will be no more."""
        read = os.read(self.answers.fileno(), 1 << 16)
        if not read:
            return None
        *lines, self.rest = (self.rest + read).split(b"\n")
        return [json.loads(line) for line in lines]

    def dismiss(self) -> None:
        """Send no more trials: the worker ends, with a checkpoint if it is training."""
        self.leaving = True
        with suppress(BrokenPipeError):
            self.trials.close()

    def end(self) -> str:
        """Wait for its end; returns a sentence that says how it ended."""
        self.dismiss()
        status = self.process.wait()
        self.answers.close()
        with self.errors as file:
            file.seek(0)
            lines = file.read().decode(errors="replace").strip().splitlines()
        if status < 0:
            name = signal.Signals(-status).name
            memory = ", as the system does when memory runs out" if name == "SIGKILL" else ""
            return f"its process was ended by {name}{memory}"
        return f"its process ended with status {status}" + (f": {lines[-1]}" if lines else "")


def count_gpus(device: str) -> int:
    """GPUs that workers on such a device use. This opens no context on them."""
    if device not in ("auto", "cuda"):
        return 0
    import torch

    return torch.cuda.device_count()


def environment(number: int, jobs: int, device: str) -> dict[str, str]:
    """What a worker's environment has beyond that of this process.

    The workers share the cores and the GPUs.
    """
    added = {}
    if jobs > 1 and "OMP_NUM_THREADS" not in os.environ:
        added["OMP_NUM_THREADS"] = str(max(1, cores() // jobs))
    gpus = count_gpus(device)
    if gpus > 1:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(gpus)))
        added["CUDA_VISIBLE_DEVICES"] = visible.split(",")[number % gpus]
    return added
