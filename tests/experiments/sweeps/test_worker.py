"""The worker: what it answers, and when it ends."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from atomsep.experiments.machine import Machine
from atomsep.experiments.registry import run_key
from atomsep.experiments.sweeps.worker import work
from atomsep.experiments.synthetic.experiment import SYNTHETIC


def line(root: Path, device: str, *assignments: str) -> str:
    """A trial, as a sweep sends it."""
    machine = dataclasses.asdict(Machine(device=device, tensorboard=False))
    key = run_key(SYNTHETIC, "plain", 0, assignments, tiny=True).record()
    trial = {"key": key, "root": str(root), "machine": {**machine, "data": "data"}}
    return json.dumps(trial) + "\n"


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
