"""The paper's Gaussian mixtures (its figure 3): two linear layers, ten seeds. See `mixtures`.

The learning rate of 0.3 is part of the setting and not tuned; `atomsep sweep synthetic --search`
tunes it first, as the paper's protocol does. The weights were chosen at this rate on validation
samples of seeds that are not reported, over the paper's grid (its sums over five tokens make its
weights of atom modeling 25 times smaller than ours of means). `atomsep sweep synthetic --search
--set learning_rate=0.3 --search-seeds 100-119` found, in per cent of the samples:

    weight             0.005    0.01    0.02    0.05     0.1     0.2     0.5
    Hinge, 1-norm      93.84*  93.36   92.50   90.89   89.26   69.17   52.78
    Hinge, 2-norm      94.18*  94.06   93.80   92.86   90.86   87.29   81.76
    Rank-H             94.29*  94.29   94.28   94.28   94.28   94.27   94.22
    SimCLR             94.30   94.31   94.32   94.35   94.36   94.38   94.38*

    weight             0.125    0.25     0.5    1.25     2.5       5    12.5
    atom modeling      94.24   94.37   94.53   94.78   94.94   95.05   95.15*
    no neutrality      94.28   94.39   94.56   94.78   94.96   95.04   95.25*
    no occupancy       94.35   94.39   94.40   94.42   94.44   94.86   95.30*
    no constraints     94.33   94.38   94.40   94.42   94.43   94.69   95.48*

    cross-entropy      94.29

Every choice (*) lies at an end of its grid: the hinges and Rank-H help the less the more they
weigh, and the others might help more with more.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from atomsep.experiments.classification import SCHEDULES, Classification
from atomsep.experiments.loading import Batch, TensorFeed
from atomsep.experiments.randomness import generator
from atomsep.experiments.settings import Settings, setting
from atomsep.experiments.synthetic.mixtures import MixtureClassifier, draw
from atomsep.experiments.task import Context, Experiment, Task
from atomsep.methods.registry import ATOM_MODELING, METHODS, OfferedMethods

JITTER = 0.1
"""Deviation of the Gaussian noise that makes SimCLR's second view of a sample."""

OPTIMISERS = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}
ACTIVATIONS = {"sigmoid": nn.Sigmoid, "relu": nn.ReLU}


@dataclass(frozen=True)
class MixtureSettings(Settings):
    """Settings of the Gaussian mixtures."""

    epochs: int = setting(20, "passes over the training samples", low=1)
    learning_rate: float = setting(0.3, "of the optimiser", low=0)
    layer: str = setting("embed", "the layer that the method acts on")
    train_samples: int = setting(2000, "drawn once a seed", low=2)
    test_samples: int = setting(50_000, "drawn once a seed", low=1)
    optimiser: str = setting("sgd", "of the model", choices=tuple(OPTIMISERS))
    schedule: str = setting("constant", "of the learning rate", choices=tuple(SCHEDULES))
    activation: str = setting("sigmoid", "of the hidden layer", choices=tuple(ACTIVATIONS))


def build(context: Context) -> Task:
    """The classifier of a seed with its samples."""
    settings, seed = context.settings, context.seed
    torch.set_num_threads(1)  # on tensors this small threads only wait for each other
    model = MixtureClassifier()
    model.activation = ACTIVATIONS[settings.activation]()
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

    def held_out_batches() -> Iterator[Batch]:
        yield Batch(held_out.values, held_out.labels)

    return Classification(
        context,
        model,
        OPTIMISERS[settings.optimiser](model.parameters(), lr=settings.learning_rate),
        feed,
        held_out_batches,
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


SYNTHETIC = Experiment(
    name="synthetic",
    title="Gaussian mixtures",
    summary="two linear layers on Gaussian mixtures of five sub-units",
    settings=MixtureSettings(),
    tiny={"epochs": 2, "train_samples": 256, "test_samples": 500},
    build=build,
    methods=OfferedMethods("synthetic", "labels", "augmentation"),
    metric="accuracy",
    weights={
        "hinge-1": 0.005,
        "hinge-2": 0.005,
        "rank-h": 0.005,
        "simclr": 0.5,
        **dict.fromkeys(ATOM_MODELING, 12.5),
    },
    learning_rates=(0.03, 0.1, 0.3, 1.0, 3.0),
    weight_grid={
        "": (0.5, 0.2, 0.1, 0.05, 0.02, 0.01, 0.005),
        "atom": (12.5, 5.0, 2.5, 1.25, 0.5, 0.25, 0.125),
    },
)
