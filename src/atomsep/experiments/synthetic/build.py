"""From the settings of the Gaussian mixtures to a classifier with its samples."""

from __future__ import annotations

import torch
from torch import Tensor

from atomsep.experiments.classification import Classification
from atomsep.experiments.loading import Batch, TensorFeed
from atomsep.experiments.optimisers import make_optimiser
from atomsep.experiments.randomness import generator
from atomsep.experiments.synthetic.mixtures import MixtureClassifier, draw
from atomsep.experiments.task import Context, Task
from atomsep.methods import METHODS

JITTER = 0.1
"""Standard deviation of the Gaussian noise that makes SimCLR's second view of a sample."""

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
        schedule=settings.schedule,
    )


def jitter(values: Tensor, generator: torch.Generator) -> Tensor:
    """The second view of a batch: a little Gaussian noise on every sub-unit."""
    return values + JITTER * torch.randn(values.shape, generator=generator)


def metrics() -> dict[str, object]:
    """Accuracy."""
    from torchmetrics.classification import MulticlassAccuracy

    return {"accuracy": MulticlassAccuracy(2, average="micro")}
