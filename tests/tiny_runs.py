"""Classifiers in their tiny form, trained on the CPU, and what holds for all of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from atomsep.experiments.machine import Machine
from atomsep.experiments.registry import EXPERIMENTS, run_key
from atomsep.experiments.runs import Run
from atomsep.experiments.task import Experiment
from atomsep.experiments.training import train


def run(
    experiment: Experiment,
    method: str,
    root: Path,
    *changes: str,
    seed: int = 0,
    tiny: bool = True,
    **where: Any,
) -> tuple[dict[str, Any], Run]:
    """The result, and the run on disk."""
    key = run_key(experiment, method, seed, changes, tiny=tiny)
    result = train(experiment, key, root, Machine(device="cpu", tensorboard=False, **where))
    return result, Run(key.folder(root))


SHARES = {"gradient_share", "gradient_share_charge", "gradient_share_positions"}


def read_metrics(folder: Path, *, start: bool = False) -> list[dict[str, Any]]:
    """The lines of metrics that a run has written so far; with `start` that of its first step."""
    file = Run(folder).metrics
    if not file.exists():
        return []
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    return [line for line in lines if start or line.keys() - {"epoch", "step", "seconds"} - SHARES]


def train_and_check(experiment: Experiment, method: str, root: Path) -> dict[str, float]:
    """Its loss falls and its files are right; returns the metrics."""
    result, on_disk = run(experiment, method, root)
    lines = read_metrics(on_disk.folder)
    losses = [sum(line.get(part, 0) for part in ("cross-entropy", "method")) for line in lines]
    assert losses[-1] < losses[0]
    assert json.loads(on_disk.result.read_text()) == result
    assert (result["experiment"], result["method"]) == (experiment.name, method)
    assert ("method" in lines[0]) == (method != "plain")
    assert EXPERIMENTS[experiment.name] is experiment
    scores: dict[str, float] = result["metrics"]
    return scores
