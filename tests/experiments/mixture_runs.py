"""Tiny runs on the mixtures, and what is left of them on disk."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from atomsep.experiments.machine import Machine
from atomsep.experiments.progress import Listener
from atomsep.experiments.registry import find_experiment, run_key
from atomsep.experiments.runs import Run, RunKey
from atomsep.experiments.training import train

SYNTHETIC = find_experiment("synthetic")
SAMPLED = ("method.pairs=sampled", "method.tokens=3")
"""Makes atom modeling draw random numbers of its own, the hardest case for continuing."""


def tiny(method: str = "plain", seed: int = 0, *settings: str) -> RunKey:
    return run_key(SYNTHETIC, method, seed, settings, tiny=True)


def run(key: RunKey, root: Path, **machine: Any) -> dict[str, Any]:
    return train(SYNTHETIC, key, root, Machine(tensorboard=False, **machine))


def weights(key: RunKey, root: Path) -> dict[str, Tensor]:
    state: dict[str, Tensor] = torch.load(Run(key.folder(root)).model, weights_only=True)["model"]
    return state


def without_times(line: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in line.items() if name != "seconds"}


class StopAt(Listener):
    """Ends the run by an exception when an epoch is evaluated, as a crash would."""

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch

    def evaluated(self, epoch: int, step: int, metrics: Mapping[str, float]) -> None:
        if epoch == self.epoch:
            raise MemoryError
