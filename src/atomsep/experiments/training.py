"""Train the mixture classifier with cross-entropy alone, or with atom modeling added.

A seed fixes the data, the initial weights and the order of the batches. Both methods get the same
ones, so that the difference of their accuracies is a paired one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import nn

import atomsep
from atomsep.experiments.mixtures import MixtureClassifier, Samples, draw

METHODS = ("cross-entropy", "atom modeling")

OPTIMISERS = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}
ACTIVATIONS = {"sigmoid": nn.Sigmoid, "relu": nn.ReLU}

STREAMS = ("initial weights", "training samples", "test samples", "order")
"""What a seed decides, each from a random stream of its own."""


@dataclass(frozen=True)
class Setting:
    """Everything but the seed that decides a result.

    Attributes:
        weight: of the atom loss, in mean scale.
        learning_rate: of plain SGD, constant unless `decay`.
        epochs: passes over the training samples.
        batch: samples a step.
        train_samples: drawn once a seed.
        test_samples: drawn once a seed; used for the reported accuracy alone.
        optimiser: "sgd" or "adam".
        decay: let the learning rate fall linearly to 0 over the epochs.
        activation: of the hidden layer, "sigmoid" or "relu".
    """

    weight: float = 12.5
    learning_rate: float = 0.3
    epochs: int = 20
    batch: int = 64
    train_samples: int = 2000
    test_samples: int = 50_000
    optimiser: str = "sgd"
    decay: bool = False
    activation: str = "sigmoid"


@dataclass(frozen=True, eq=False)
class Trained:
    """A trained classifier and the share of test samples that it gets right."""

    model: MixtureClassifier
    accuracy: float


def stream(seed: int, name: str) -> torch.Generator:
    """The random stream of a seed for one purpose."""
    return torch.Generator().manual_seed(len(STREAMS) * seed + STREAMS.index(name))


def fresh_model(seed: int, activation: str = "sigmoid") -> MixtureClassifier:
    """The untrained model of a seed; the global random state is left as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(stream(seed, "initial weights").initial_seed())
        model = MixtureClassifier()
    model.activation = ACTIVATIONS[activation]()
    return model


def held_out(seed: int, setting: Setting) -> Samples:
    """The test samples of a seed."""
    return draw(setting.test_samples, stream(seed, "test samples"))


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute on one thread: on tensors this small, threads only wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@one_thread()
def train(
    setting: Setting, seed: int, method: str, on_epoch: Callable[[], None] = lambda: None
) -> Trained:
    """Train one model.

    Args:
        setting: sizes, optimiser, weight.
        seed: decides data, initial weights and order, alike for every method.
        method: one of `METHODS`.
        on_epoch: called after each epoch, for progress bars.

    Returns:
        The model after the last epoch with its accuracy on the seed's test samples.
    """
    model = fresh_model(seed, setting.activation)
    samples = draw(setting.train_samples, stream(seed, "training samples"))
    order = stream(seed, "order")
    optimiser = OPTIMISERS[setting.optimiser](model.parameters(), lr=setting.learning_rate)
    attachment = None
    if method == "atom modeling":
        attachment = atomsep.attach(model, "embed", weight=setting.weight)

    model.train()
    for epoch in range(setting.epochs):
        if setting.decay:
            rate = setting.learning_rate * (1 - epoch / setting.epochs)
            optimiser.param_groups[0]["lr"] = rate
        for batch in torch.randperm(setting.train_samples, generator=order).split(setting.batch):
            logits = model(samples.values[batch])
            loss = nn.functional.cross_entropy(logits, samples.labels[batch])
            if attachment is not None:
                loss = loss + attachment.loss()
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        on_epoch()

    if attachment is not None:
        attachment.detach()
    return Trained(model.eval(), accuracy(model, held_out(seed, setting)))


@torch.no_grad()
def accuracy(model: MixtureClassifier, samples: Samples) -> float:
    """Share of samples whose label the model finds."""
    right = model(samples.values).argmax(1) == samples.labels
    return float(right.double().mean())
