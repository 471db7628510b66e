"""The worker: what it answers, and when it ends."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from atomsep.experiments.errors import ExperimentError
from atomsep.experiments.images.experiments import FLOWERS
from atomsep.experiments.machine import Machine
from atomsep.experiments.registry import run_key
from atomsep.experiments.sweeps import worker
from atomsep.experiments.sweeps.worker import work
from atomsep.experiments.synthetic.experiment import SYNTHETIC


def line(root: Path, device: str, *assignments: str) -> str:
    """A trial, as a sweep sends it."""
    machine = dataclasses.asdict(Machine(device=device, tensorboard=False))
    key = run_key(SYNTHETIC, "plain", 0, assignments, tiny=True).record()
    trial = {"key": key, "root": str(root), "machine": {**machine, "data": "data"}}
    return json.dumps(trial) + "\n"


SLOW = """
import queue, sys, time

class SlowQueue(queue.Queue):
    def get(self):
        item = super().get()
        time.sleep(1)
        return item

queue.SimpleQueue = SlowQueue
from atomsep.experiments.sweeps import worker
sys.exit(worker.main())
"""
"""A worker that is slow to take its trial."""


def test_a_trial_whose_sweep_is_gone_is_not_trained(tmp_path: Path) -> None:
    command = [sys.executable, "-c", SLOW]
    done = subprocess.run(command, input=line(tmp_path, "cpu"), capture_output=True, text=True)
    assert done.returncode == -signal.SIGTERM
    assert not list(tmp_path.rglob("result.json"))


CUDA_ERROR = """CUDA error: an illegal memory access was encountered
CUDA kernel errors might be asynchronously reported at some other API call.
Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.
"""


NOT_READY = "Error 807: MPS server is not ready to accept new MPS client requests"


@pytest.mark.parametrize(
    ("error", "last"),
    [
        (RuntimeError(CUDA_ERROR), {"failed": "RuntimeError: " + CUDA_ERROR.splitlines()[0]}),
        (ExperimentError("no such layer"), {"failed": "no such layer"}),
        (ZeroDivisionError(), {"failed": "ZeroDivisionError"}),
        (MemoryError(), {"crowded": "MemoryError"}),
        (RuntimeError(NOT_READY), {"lost": f"RuntimeError: {NOT_READY}"}),
    ],
)
def test_the_reason_of_a_failure_is_the_first_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, error: Exception, last: dict[str, str]
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(worker, "train", fail)
    assert work(line(tmp_path, "cpu"), lambda _: None) == last


def test_a_worker_that_lost_the_server_of_mps_ends() -> None:
    script = """
from atomsep.experiments.sweeps import worker
worker.work = lambda line, answer: {"lost": "no server"}
worker.main()
"""
    command, pipes = [sys.executable, "-c", script], {"stdin": subprocess.PIPE}
    with subprocess.Popen(command, **pipes, stdout=subprocess.PIPE, text=True) as process:
        # The input stays open, as in a sweep.
        process.stdin.write("1\n2\n")
        process.stdin.flush()
        answers = [json.loads(next(process.stdout)) for _ in range(2)]
        assert process.wait(timeout=60) == 0
        assert answers == [{"ready": True}, {"lost": "no server"}]
        assert not process.stdout.read()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_peak_is_that_of_the_trial(tmp_path: Path) -> None:
    answers: list[Any] = []
    block = torch.ones(2**31, dtype=torch.uint8, device="cuda")
    size = block.numel()
    del block
    torch.cuda.empty_cache()
    assert work(line(tmp_path, "cuda"), answers.append) == {"finished": True}
    peaks = [answer["memory"]["cuda"][0] for answer in answers if "memory" in answer]
    assert peaks
    assert max(peaks) < size


def test_a_worker_whose_loader_forks_goes_on(tmp_path: Path) -> None:
    """A forked process closes the standard input, which must not be in use by another thread."""
    machine = dataclasses.asdict(
        Machine(device="cpu", workers=1, data_on="loader", tensorboard=False)
    )
    key = run_key(FLOWERS, "plain", 0, ["epochs=1"], tiny=True).record()
    trial = {"key": key, "root": str(tmp_path), "machine": {**machine, "data": "data"}}
    command = [sys.executable, "-m", "atomsep.experiments.sweeps.worker"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, start_new_session=True, **pipes) as process:
        # The input stays open, as in a sweep.
        alarm = threading.Timer(120, os.killpg, (process.pid, signal.SIGKILL))
        alarm.start()
        process.stdin.write(json.dumps(trial) + "\n")
        process.stdin.flush()
        answers = []
        for text in process.stdout:
            answers.append(json.loads(text))
            if answers[-1].keys() & {"finished", "failed"}:
                break
        alarm.cancel()
    assert answers[-1] == {"finished": True}
