"""GANs in their tiny form, on the CPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from atomsep.experiments.gan.adversarial import Gan
from atomsep.experiments.machine import Machine, make_fabric
from atomsep.experiments.randomness import seed_step
from atomsep.experiments.registry import find_experiment, run_key
from atomsep.experiments.runs import Run, RunKey
from atomsep.experiments.task import Context, Experiment
from atomsep.experiments.training import train

MNIST = find_experiment("mnist-gan")
FEW_CODES = ("method.codes=32",)
"""Looking up 512 of them takes longer than the training."""


class Means(nn.Module):
    """Four features of an image: the means of its quarters."""

    def forward(self, images: Tensor) -> Tensor:
        means = nn.functional.adaptive_avg_pool2d(images.float().mean(1, keepdim=True), 2)
        return means.flatten(1)


def tiny(experiment: Experiment, method: str = "plain", seed: int = 0, *settings: str) -> RunKey:
    options = FEW_CODES if method == "vq" else ()
    return run_key(experiment, method, seed, (*options, *settings), tiny=True)


def bare(method: str = "plain", seed: int = 0, *settings: str) -> RunKey:
    """A key for tests that do not look at the metrics: these features are few, and not trained."""
    return tiny(MNIST, method, seed, f"features={__name__}:Means", *settings)


def run(key: RunKey, root: Path, **machine: Any) -> dict[str, Any]:
    return train(
        find_experiment(key.experiment),
        key,
        root,
        Machine(device="cpu", tensorboard=False, **machine),
    )


def task_of(key: RunKey, **context: Any) -> Gan:
    fabric = make_fabric(Machine(device="cpu"), key.settings.precision)
    seed_step(key.seed, "initial weights")
    whole = Context(
        *(key.settings, key.method, key.seed, fabric, Path("nowhere")),
        tiny=key.tiny,
        validation=key.validation,
        **context,
    )
    task = find_experiment(key.experiment).build(whole)
    assert isinstance(task, Gan)
    return task


def trained(task: Gan, steps: int) -> nn.Module:
    for step, batch in zip(range(steps), task.batches(0, 0), strict=False):
        seed_step(task.seed, "step", 0, step)
        task.step(batch, 0.0)
    return task.inner


def saved_models(key: RunKey, root: Path) -> dict[str, Any]:
    models: dict[str, Any] = torch.load(Run(key.folder(root)).model, weights_only=True)
    return models


def steps_kept(key: RunKey, root: Path, per_epoch: int) -> int:
    """Number of steps that the run's checkpoint continues from."""
    state = Run(key.folder(root)).load_checkpoint(torch.device("cpu"))
    assert state is not None
    done: int = state["epoch"] * per_epoch + state["step"]
    return done


@contextmanager
def crashing_at(number: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """End a run by an exception in its step of that number, counted from 0."""
    step, calls = Gan.step, iter(range(1000))

    def crashing(task: Gan, batch: Tensor, progress: float) -> Any:
        if next(calls) == number:
            raise MemoryError
        return step(task, batch, progress)

    with monkeypatch.context() as patch:
        patch.setattr(Gan, "step", crashing)
        yield
