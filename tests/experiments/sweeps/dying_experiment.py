"""An experiment one of whose runs kills its own process, the first time it gets that far."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable
from typing import Any

import torch

from atomsep.experiments.registry import register_experiment
from atomsep.experiments.settings import Settings
from atomsep.experiments.task import Context, Experiment, Task

STEPS = 4
DIES = 2, 1
"""The step and the seed."""


class Dying(Task):
    """Trains nothing, and notes every step in the run's folder."""

    steps = STEPS

    def __init__(self, context: Context) -> None:
        super().__init__()
        assert context.folder is not None
        self.seed, self.notes = context.seed, context.folder / "notes"

    def batches(self, epoch: int, start: int) -> Iterable[int]:
        return range(start, STEPS)

    def step(self, batch: int, progress: float) -> dict[str, torch.Tensor]:
        with open(self.notes, "a") as file:
            file.write(f"{batch} in {os.getpid()}\n")
        first = len(self.notes.read_text().splitlines()) == batch + 1
        if (batch, self.seed) == DIES and first:
            os.kill(os.getpid(), signal.SIGKILL)
        return {"loss": torch.tensor(float(batch))}

    def evaluate(self) -> dict[str, float]:
        return {"score": 0.5}

    def parts(self) -> dict[str, Any]:
        return {}


DYING = Experiment(
    name="dying",
    title="Dying",
    summary="kills its process once",
    settings=Settings(),
    tiny={},
    build=Dying,
    methods=("plain",),
    metric="score",
)
register_experiment(DYING)
