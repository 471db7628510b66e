"""From data sets to batches: the seed of a run determines its order and augmentation.

A sample's place in a run is its key `(epoch, index)`. The order is a permutation that depends on
the seed and the epoch; the augmentation of a sample depends on the seed and its key. Batches can
therefore start anywhere in an epoch, and are the same whichever process loads them.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, default_collate

from atomsep.experiments.errors import ExperimentError
from atomsep.experiments.randomness import generator
from atomsep.experiments.samples import Samples

SampleKey = tuple[int, int]

DrawKey = tuple[Any, ...]
"""What random numbers depend on: seed, purpose, epoch, index; the arguments of `generator`."""

VIEWS = ("augmentation", "second view")
"""Purposes of the random numbers of a sample's views."""


class Batch(NamedTuple):
    """One batch, as a training step receives it.

    Attributes:
        inputs: inputs of the model; a tensor, or a dictionary of its arguments.
        labels: `(M,)`.
        second: inputs of the second view, where the method needs one made by augmentation.
        unreadable: names of samples that could not be loaded and were left out.
    """

    inputs: Any
    labels: Tensor
    second: Any = None
    unreadable: tuple[str, ...] = ()

    def to(self, device: torch.device) -> Batch:
        """The batch on a device."""

        def move(part: Any) -> Any:
            if isinstance(part, Mapping):
                return {name: move(each) for name, each in part.items()}
            return None if part is None else part.to(device, non_blocking=True)

        return Batch(move(self.inputs), move(self.labels), move(self.second), self.unreadable)


@dataclass(frozen=True)
class Shard:
    """One of several processes, by its rank."""

    rank: int = 0
    world: int = 1


ALONE = Shard()


def epoch_batches(
    count: int, batch: int, seed: int, epoch: int, shard: Shard = ALONE
) -> list[Tensor]:
    """Indices of every batch of an epoch, for one process.

    The last batch holds the rest. It is left out if a process would get fewer than two samples of
    it: a single sample has no batch statistics and no pair.

    Example:
        >>> [len(indices) for indices in epoch_batches(10, 4, seed=0, epoch=0)]
        [4, 4, 2]
    """
    order = torch.randperm(count, generator=generator(seed, "order", epoch))
    whole = [part for part in order.split(batch) if len(part) >= 2 * shard.world]
    return [part[shard.rank :: shard.world] for part in whole]


def batches_in_order(count: int, batch: int, shard: Shard = ALONE) -> list[Tensor]:
    """Indices of every batch of an evaluation, for one process: all samples, in order."""
    own = torch.arange(count)[shard.rank :: shard.world]
    return list(own.split(batch)) if len(own) else []


class Feed(Protocol):
    """Source of training batches."""

    steps: int

    def batches(self, epoch: int, start: int) -> Iterator[Batch]:
        """The batches of an epoch, starting with batch number `start`."""


class TensorFeed:
    """Batches of tensors in memory, with at most a function that makes a second view.

    Args:
        inputs: `(n, ...)`.
        labels: `(n,)`.
        second: makes the second view of a batch, where the method needs one.
    """

    def __init__(
        self,
        inputs: Tensor,
        labels: Tensor,
        *,
        batch: int,
        seed: int,
        shard: Shard = ALONE,
        second: Callable[[Tensor, torch.Generator], Tensor] | None = None,
    ) -> None:
        self.inputs, self.labels = inputs, labels
        self.batch, self.seed, self.shard, self.second = batch, seed, shard, second
        self.steps = len(epoch_batches(len(labels), batch, seed, 0, shard))

    def batches(self, epoch: int, start: int) -> Iterator[Batch]:
        """The batches of an epoch, starting with batch number `start`."""
        parts = epoch_batches(len(self.labels), self.batch, self.seed, epoch, self.shard)
        for step, indices in enumerate(parts[start:], start):
            inputs, second = self.inputs[indices], None
            if self.second is not None:
                second = self.second(inputs, generator(self.seed, "second view", epoch, step))
            yield Batch(inputs, self.labels[indices], second)


class _Keys:
    """The batch sampler: keys of the batches of one epoch, starting with a given one."""

    def __init__(self, parts: Callable[[int], list[Tensor]]) -> None:
        self.parts, self.epoch, self.start = parts, 0, 0

    def __iter__(self) -> Iterator[list[SampleKey]]:
        for indices in self.parts(self.epoch)[self.start :]:
            yield [(self.epoch, index) for index in indices.tolist()]


class UnreadableSampleError(ExperimentError):
    """A sample of a data set cannot be loaded."""

    @classmethod
    def of(cls, name: str) -> UnreadableSampleError:
        """The error for one sample, with what to do about it."""
        return cls(
            f"{name} cannot be read; repair or remove it, or leave out such samples with --set "
            f"unreadable=skip"
        )

    @classmethod
    def of_batch(cls, names: Sequence[str]) -> UnreadableSampleError:
        """The error for a batch of which nothing is left."""
        return cls(f"no sample of a batch can be read, for example {names[0]}; check the data")


class Unreadable(str):
    """Name of a sample that cannot be read, with the reason."""

    for_now = False
    """Whether the system refused, and not the file's contents."""


def read_sample(samples: Samples, index: int) -> Any:
    """A sample, or an `Unreadable` in its place."""
    try:
        return samples.load(index)[0]
    except Exception as error:
        # The last one is Pillow's; its class cannot be named without importing it.
        kinds = (OSError, SyntaxError, ValueError)
        if not (isinstance(error, kinds) or type(error).__name__ == "DecompressionBombError"):
            raise
        name = samples.names[index]
        reason = str(error).replace(f" {name!r}", "")  # Pillow repeats the name
        unreadable = Unreadable(f"{name} ({reason})")
        # (Pillow's own errors have no number.)
        unreadable.for_now = getattr(error, "errno", None) not in (None, errno.ENOENT)
        return unreadable


def check_labels(labels: Tensor, classes: int) -> None:
    """Refuse labels that are not numbers of classes.

    Raises:
        ExperimentError: there is one.
    """
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= classes:
        raise ExperimentError(
            f"a sample has label {low if low < 0 else high}, but there are {classes} classes, "
            f"numbered from 0; correct the labels"
        )


class _Augmented(Dataset[Any]):
    """Samples by key, augmented once or twice; in place of an unreadable sample, its name.

    It is not raised here: the exception would reach the user with the traceback of a process.
    """

    def __init__(
        self, samples: Samples, augment: Callable[[Any, DrawKey], Any] | None, views: int, seed: int
    ) -> None:
        self.samples, self.augment, self.views, self.seed = samples, augment, views, seed

    def __getitem__(self, key: SampleKey) -> Any:
        stored = read_sample(self.samples, key[1])
        if isinstance(stored, Unreadable):
            return stored
        views = [
            stored if self.augment is None else self.augment(stored, (self.seed, view, *key))
            for view in VIEWS[: self.views]
        ]
        return (*views, self.samples.labels[key[1]])


def _collate(collate: Callable[[list[Any]], Any], items: list[Any]) -> Batch:
    """Make a batch of the samples that could be loaded."""
    unreadable = tuple(item for item in items if isinstance(item, Unreadable))
    items = [item for item in items if not isinstance(item, Unreadable)]
    if not items:
        return Batch(None, torch.empty(0, dtype=torch.long), None, unreadable)
    *views, labels = zip(*items, strict=True)
    inputs = [collate(list(view)) for view in views]
    second = inputs[1] if len(inputs) > 1 else None
    return Batch(inputs[0], torch.tensor(labels), second, unreadable)


class LoaderFeed:
    """Batches loaded sample by sample, in other processes if there are `workers`.

    Args:
        samples: the data set.
        augment: from a stored sample, and the key of its random numbers, to the model's input;
            None if they are the same.
        collate: from a list of inputs to a batch of them.
        views: 2 to augment every sample twice.
        skip_unreadable: leave out samples that cannot be loaded, instead of stopping.
        shuffle: False for evaluation: every sample once, in the order of the data set.
    """

    def __init__(
        self,
        samples: Samples,
        augment: Callable[[Any, DrawKey], Any] | None = None,
        *,
        batch: int,
        seed: int,
        workers: int = 0,
        shard: Shard = ALONE,
        collate: Callable[[list[Any]], Any] = default_collate,
        views: int = 1,
        skip_unreadable: bool = False,
        shuffle: bool = True,
        pin_memory: bool = False,
    ) -> None:

        def parts(epoch: int) -> list[Tensor]:
            if shuffle:
                return epoch_batches(len(samples), batch, seed, epoch, shard)
            return batches_in_order(len(samples), batch, shard)

        self.steps = len(parts(0))
        self.classes, self.skip = len(samples.classes), skip_unreadable
        self.keys = _Keys(parts)
        self.loader: DataLoader[Any] = DataLoader(
            _Augmented(samples, augment, views, seed),
            batch_sampler=self.keys,
            num_workers=workers,
            collate_fn=partial(_collate, collate),
            persistent_workers=workers > 0,
            pin_memory=pin_memory,
            # Otherwise torch draws a base seed from the global generator at every epoch.
            generator=torch.Generator().manual_seed(0),
        )

    def batches(self, epoch: int = 0, start: int = 0) -> Iterator[Batch]:
        """The batches of an epoch, starting with batch number `start`.

        Raises:
            ExperimentError: a sample cannot be read, or its label is not one of the classes.
        """
        self.keys.epoch, self.keys.start = epoch, start
        for batch in self.loader:
            self._check(batch)
            yield batch

    def _check(self, batch: Batch) -> None:
        if batch.unreadable and not self.skip:
            raise UnreadableSampleError.of(batch.unreadable[0])
        if len(batch.labels) == 0:
            raise UnreadableSampleError.of_batch(batch.unreadable)
        check_labels(batch.labels, self.classes)
