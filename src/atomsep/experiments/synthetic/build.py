"""From the settings of the Gaussian mixtures to a classifier with its samples."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from atomsep.experiments.classification import Classification
from atomsep.experiments.loading import Batch, TensorFeed
from atomsep.experiments.optimisers import make_optimiser
from atomsep.experiments.predicting import Inputs, Shown
from atomsep.experiments.randomness import generator
from atomsep.experiments.synthetic.mixtures import SUB_UNITS, MixtureClassifier, draw
from atomsep.experiments.task import Context, Task
from atomsep.experiments.trained import Saved, TrainedClassifier
from atomsep.methods import METHODS

JITTER = 0.1
"""Standard deviation of the Gaussian noise that makes SimCLR's second view of a sample."""

CLASSES = ("B", "A")
"""The class that most sub-units were drawn from, by label."""

OPTIMISERS: dict[str, type[torch.optim.Optimizer]] = {
    "sgd": torch.optim.SGD,
    "adam": torch.optim.Adam,
}


def build(context: Context) -> Task:
    """The classifier of a seed with its samples."""
    settings, seed = context.settings, context.seed
    torch.set_num_threads(1)  # on tensors this small, threads only wait for each other
    model = MixtureClassifier(settings.activation)
    samples = draw(settings.train_samples, generator(seed, "training samples"))
    purpose = "validation samples" if context.validation else "test samples"
    held_out = draw(settings.test_samples, generator(seed, purpose))
    feed = TensorFeed(
        samples.values,
        samples.labels,
        batch=settings.batch,
        seed=seed,
        shard=context.shard,
        second=jitter if METHODS[context.method].second_view == "augmentation" else None,
    )

    return Classification(
        context,
        model,
        make_optimiser(OPTIMISERS[settings.optimiser], model.parameters(), context),
        feed,
        lambda: iter([Batch(held_out.values, held_out.labels)]),
        metrics,
        shown=Shown(MixtureInputs(), held_out.values.__getitem__, held_out.labels, CLASSES),
        schedule=settings.schedule,
    )


def load(saved: Saved) -> TrainedClassifier:
    """The trained classifier of a run."""
    model = saved.weights_into(MixtureClassifier(saved.settings.activation), "model")
    return TrainedClassifier(saved, model, saved.bound(model), MixtureInputs())


class MixtureInputs(Inputs):
    """Samples are five numbers."""

    kind = "numbers"

    def see(self, samples: Sequence[Any]) -> list[Tensor]:
        """Samples as tensors `(5,)`."""
        seen = [torch.as_tensor(sample, dtype=torch.float32) for sample in samples]
        for values in seen:
            if values.shape != (SUB_UNITS,):
                raise ValueError(
                    f"a sample must be {SUB_UNITS} numbers, but one has shape {tuple(values.shape)}"
                )
        return seen

    def batches(self, seen: Sequence[Tensor], size: int) -> Iterator[tuple[Sequence[int], Any]]:
        """All at once, as they are evaluated."""
        if seen:
            yield range(len(seen)), torch.stack(list(seen))

    def columns(self, seen: Sequence[Tensor]) -> dict[str, Any]:
        """The sub-units."""
        return {"values": torch.stack(list(seen)).numpy()}


def jitter(values: Tensor, generator: torch.Generator) -> Tensor:
    """The second view of a batch: a little Gaussian noise on every sub-unit."""
    return values + JITTER * torch.randn(values.shape, generator=generator)


def metrics() -> dict[str, object]:
    """Accuracy."""
    from torchmetrics.classification import MulticlassAccuracy

    return {"accuracy": MulticlassAccuracy(2, average="micro")}
