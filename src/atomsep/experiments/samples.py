"""A data set to classify, before augmentation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from atomsep.experiments.splits import stratified


@dataclass(frozen=True, eq=False)
class Samples:
    """Samples with their labels.

    Attributes:
        stored: the samples, or what `read` loads them from.
        labels: their classes, from 0.
        classes: names of all classes.
        names: names of the samples in messages: their files, or their numbers.
        read: from what is stored to the sample.
    """

    stored: list[Any]
    labels: list[int]
    classes: Sequence[str]
    names: list[str]
    read: Callable[[Any], Any] | None = None

    def __len__(self) -> int:
        return len(self.labels)

    def load(self, index: int) -> tuple[Any, int]:
        """A sample and its label."""
        stored = self.stored[index]
        return stored if self.read is None else self.read(stored), self.labels[index]

    def take(self, chosen: Sequence[int]) -> Samples:
        """A subset."""
        stored, labels = [self.stored[i] for i in chosen], [self.labels[i] for i in chosen]
        return replace(self, stored=stored, labels=labels, names=[self.names[i] for i in chosen])

    def __add__(self, other: Samples) -> Samples:
        stored, labels = self.stored + other.stored, self.labels + other.labels
        return replace(self, stored=stored, labels=labels, names=self.names + other.names)

    def split(self, share: float, purpose: str) -> Sets:
        """Samples that stay and samples held out; see `stratified`."""
        stay, out = stratified(self.labels, share, purpose)
        return self.take(stay), self.take(out)

    def with_held_out(self, test: Samples, share: float, validation: bool) -> Sets:
        """These samples with the test samples or, for a search, a share of these held out."""
        return self.split(share, "validation") if validation else (self, test)


Sets = tuple[Samples, Samples]
"""Training samples and held-out samples."""
