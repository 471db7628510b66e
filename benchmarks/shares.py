"""How large the gradient of a method is at its layer, beside the task's.

    python -m benchmarks.shares synthetic --steps 300
    python -m benchmarks.shares pets --set image=64 --set stages=4
    python -m benchmarks.shares mnist-gan --set width=64 --set train_samples=0
    python -m benchmarks.shares cola

Trains with the task's loss alone, on the embedded data of the tiny form. For each quarter of the
steps it prints the median ratio of two norms, that of the gradient of the unweighted loss and that
of the task's loss, and the weight that would make it 5 %. Default weights start from here.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

from atomsep.experiments.machine import Machine, make_fabric
from atomsep.experiments.randomness import seed_step
from atomsep.experiments.registry import find_experiment, run_key
from atomsep.experiments.task import Context
from atomsep.hooks.reader import LayerReader
from atomsep.hooks.targets import find_layers
from atomsep.methods import Method, make_method

METHODS = ("koleo", "vicreg", "atom", "atom-no-energy")
SHARE = 0.05


class Probe:
    """Keeps the tokens of a layer's last training forward, and the gradient that arrives there."""

    def __init__(self, model: nn.Module, name: str, layout: Any) -> None:
        [(name, layer)] = find_layers(model, name).items()
        self.model, self.reader = model, LayerReader(model, name, layer, layout)
        self.reader.listen(self._hook)

    def _hook(self, layer: nn.Module, args: Any, output: Any) -> None:
        _, latent = self.reader.pick(output)
        if self.model.training and latent.requires_grad:
            layout = self.reader.layout(latent)
            self.tokens = layout.tokens(latent).detach().clone()
            self.mask = self.reader.mask(layout, latent)
            latent.register_hook(self._arrive)

    def _arrive(self, gradient: Tensor) -> None:
        self.task = gradient.norm()

    def ratio(self, method: Method) -> float:
        """Norm of the method's gradient over that of the task's."""
        tokens = self.tokens.clone().requires_grad_()
        [gradient] = torch.autograd.grad(method(tokens, mask=self.mask), tokens)
        return float(gradient.norm() / self.task)


def measure(name: str, steps: int, assignments: list[str]) -> dict[str, list[float]]:
    """The ratios of all steps, by method."""
    experiment = find_experiment(name)
    settings = run_key(experiment, "plain", 0, assignments, tiny=True).settings
    fabric = make_fabric(Machine(), settings.precision)
    seed_step(0, "initial weights")
    task: Any = experiment.build(Context(settings, "plain", 0, fabric, Path(), tiny=True))
    probe = Probe(task.inner, settings.layer, settings.layout)
    methods = {each: make_method(each, features=1) for each in METHODS}
    ratios: dict[str, list[float]] = {each: [] for each in METHODS}
    for step in range(steps):
        epoch, place = divmod(step, task.steps)
        if place == 0:
            batches = iter(task.batches(epoch, 0))
        seed_step(0, "step", epoch, place)
        task.step(next(batches), step / steps)
        for each, method in methods.items():
            assert method is not None
            ratios[each].append(probe.ratio(method))
    return ratios


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.shares")
    parser.add_argument("experiment")
    parser.add_argument("--steps", type=int, default=32)
    parser.add_argument("--set", action="append", default=[], dest="assignments")
    options = parser.parse_args()
    for method, ratios in measure(options.experiment, options.steps, options.assignments).items():
        quarter = max(1, len(ratios) // 4)
        medians = [median(ratios[at : at + quarter]) for at in range(0, 4 * quarter, quarter)]
        shown = "  ".join(f"{ratio:9.3g} ({SHARE / ratio:.2g})" for ratio in medians)
        print(f"{method:16}{shown}")


if __name__ == "__main__":
    main()
