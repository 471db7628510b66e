"""The sweep's end of its worker processes."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from atomsep.experiments.machine import Machine
from atomsep.experiments.runs import RunKey

COMMAND = [sys.executable, "-m", "atomsep.experiments.sweeps.worker"]


class WorkerProcess:
    """The sweep's end of a worker.

    Attributes:
        ready: it has started, and takes trials.
        key: the trial that it trains.
        share: of that trial which is done; None before it begins.
    """

    def __init__(self, number: int, jobs: int, device: str) -> None:
        self.number, self.ready = number, False
        self.key: RunKey | None = None
        self.share: float | None = None
        self.complaints = tempfile.TemporaryFile()  # noqa: SIM115
        self.rest = b""
        self.process = subprocess.Popen(
            COMMAND,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.complaints,
            env=os.environ | environment(number, jobs, device),
            start_new_session=True,  # Ctrl-C is for the sweep, which tells its workers
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.trials, self.answers = self.process.stdin, self.process.stdout

    def give(self, key: RunKey, root: Path, machine: Machine) -> None:
        """Send a trial."""
        trial = {
            "key": key.record(),
            "root": str(root),
            "machine": {**dataclasses.asdict(machine), "data": str(machine.data)},
        }
        self.key = key
        with suppress(BrokenPipeError):  # it has died, and the end of its answers says so
            self.trials.write(json.dumps(trial).encode() + b"\n")
            self.trials.flush()

    def hear(self) -> list[dict[str, Any]] | None:
        """The answers that have come; None if there will be no more."""
        read = os.read(self.answers.fileno(), 1 << 16)
        if not read:
            return None
        *lines, self.rest = (self.rest + read).split(b"\n")
        return [json.loads(line) for line in lines]

    def dismiss(self) -> None:
        """No more trials: it ends, with a checkpoint if it is in one."""
        with suppress(BrokenPipeError):
            self.trials.close()

    def end(self) -> str:
        """Wait for its end; returns how it ended, as a sentence."""
        self.dismiss()
        status = self.process.wait()
        self.answers.close()
        with self.complaints as file:
            file.seek(0)
            said = file.read().decode(errors="replace").strip().splitlines()
        if status < 0:
            name = signal.Signals(-status).name
            memory = ", as the system does when memory runs out" if name == "SIGKILL" else ""
            return f"its process was ended by {name}{memory}"
        return f"its process ended with status {status}" + (f": {said[-1]}" if said else "")


def environment(number: int, jobs: int, device: str) -> dict[str, str]:
    """What the worker of a number gets beside this process's environment.

    The cores are shared out among the workers, and so are the GPUs.
    """
    added = {}
    if jobs > 1 and "OMP_NUM_THREADS" not in os.environ:
        known = hasattr(os, "sched_getaffinity")  # not on every system
        cores = len(os.sched_getaffinity(0)) if known else os.cpu_count() or 1
        added["OMP_NUM_THREADS"] = str(max(1, cores // jobs))
    gpus = torch.cuda.device_count() if device in ("auto", "cuda") else 0
    if gpus > 1:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(gpus)))
        added["CUDA_VISIBLE_DEVICES"] = visible.split(",")[number % gpus]
    return added
