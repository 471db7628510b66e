"""`atomsep train --devices 2` in real processes, against one process with the whole batch."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tiny_runs import read_metrics

from atomsep.experiments.machine import Machine
from atomsep.experiments.registry import find_experiment, run_key
from atomsep.experiments.runs import Run
from atomsep.experiments.training import train

TWO = ["train", "synthetic", "--tiny", "--device", "cpu", "--devices", "2"]
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]

UNEVEN = "batch=83"
"""256 samples: three batches, which two processes share as 42 and 41, and a rest, as 4 and 3."""

OF_ONE_PROCESS = ("seconds", "position_share", "metrics")
"""What is not the same on a line: the second is that of the first process, the last rounds."""


@pytest.mark.parametrize("launcher", [[], TORCHRUN], ids=["atomsep", "torchrun"])
def test_two_processes_train_the_model_that_one_trains(tmp_path: Path, launcher: list[str]) -> None:
    experiment = find_experiment("synthetic")
    key = run_key(experiment, "atom", 0, [UNEVEN], tiny=True)
    machine = Machine(device="cpu", tensorboard=False)
    expected = train(experiment, key, tmp_path / "one", machine)
    command = [sys.executable, *launcher, "-m", "atomsep", *TWO, "--set", UNEVEN, "--out", "two"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("Training synthetic") == 1, "one process speaks for all"
    one, two = Run(key.folder(tmp_path / "one")), Run(key.folder(tmp_path / "two"))
    known, found = (torch.load(run.model, weights_only=True)["model"] for run in (one, two))
    for name, value in known.items():
        torch.testing.assert_close(found[name], value, rtol=1e-4, atol=1e-5)
    result = json.loads(two.result.read_text())
    assert result["metrics"] == pytest.approx(expected["metrics"], abs=0.005)
    lines = zip(read_metrics(one.folder), read_metrics(two.folder), strict=True)
    for of_one, of_two in lines:
        for name, value in of_one.items():
            if name not in OF_ONE_PROCESS:
                assert of_two[name] == pytest.approx(value, rel=1e-3), name
    assert result["strength_at_start"] == pytest.approx(expected["strength_at_start"], rel=1e-4)
