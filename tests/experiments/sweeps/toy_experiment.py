"""An experiment whose metric is a known function of its settings, for the search.

In powers of two from the start of each grid, with l for the learning rate, d for the weight decay
and w for the weight:

    score = -(l - 4 + 0.6 d)^2 - (d - 4)^2 - (w - PEAKS[method])^2 - seed / 10,000

At d = 0 the best l is 4, there the best d is 3, and there the best l is 2. The first two lie
outside the grids.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import log2
from typing import Any

import torch

from atomsep.experiments.registry import register_experiment
from atomsep.experiments.settings import Settings, setting
from atomsep.experiments.task import Context, Experiment, Task

PEAKS = {"plain": 0.0, "atom": 4.0, "simclr": 9.0, "hinge-2": 1.2}


@dataclass(frozen=True)
class ToySettings(Settings):
    """Settings with a weight decay."""

    weight_decay: float = setting(0.001, "weight decay", low=0, high=1)


class Toy(Task):
    """Trains nothing."""

    steps = 1

    def __init__(self, context: Context) -> None:
        super().__init__()
        self.context = context

    def batches(self, epoch: int, start: int) -> Iterable[int]:
        return range(start, 1)

    def step(self, batch: int, progress: float) -> dict[str, torch.Tensor]:
        return {"loss": torch.zeros(())}

    def evaluate(self) -> dict[str, float]:
        settings, method = self.context.settings, self.context.method
        rate, decay = log2(settings.learning_rate / 0.1), log2(settings.weight_decay / 0.001)
        weight = 0.0 if method == "plain" else log2(settings.weight) - PEAKS[method]
        score = -((rate - 4 + 0.6 * decay) ** 2) - (decay - 4) ** 2 - weight**2
        return {"score": score - self.context.seed / 10_000}

    def parts(self) -> dict[str, Any]:
        return {}


TOY = Experiment(
    name="toy",
    title="Toy",
    summary="a known function",
    settings=ToySettings(),
    tiny={},
    build=Toy,
    methods=tuple(PEAKS),
    metric="score",
    learning_rates=(0.1, 0.2, 0.4),
    weight_decays=(0.001, 0.002, 0.004),
    weight_grid={"": (1.0, 2.0, 4.0), "simclr": (4.0, 2.0)},
)
register_experiment(TOY)
