"""Hold out the same share of every class, and the same samples in every run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from atomsep.experiments.errors import ExperimentError
from atomsep.experiments.loading import Samples
from atomsep.experiments.randomness import generator


def stratified(labels: Sequence[int], share: float, purpose: str) -> tuple[list[int], list[int]]:
    """Indices that stay and indices that are held out, both in ascending order.

    The choice depends only on the purpose, not on the seed of a run: all runs on a data set share
    one split. A class with one sample keeps it; a larger one gives at least one.

    Args:
        labels: classes of all samples.
        share: share of every class that is held out.
        purpose: "test" or "validation"; each draws its own samples.

    Raises:
        ExperimentError: no class has two samples.

    Example:
        >>> stay, out = stratified([0] * 10 + [1] * 5, 0.2, "test")
        >>> len(stay), sum(index < 10 for index in out), sum(index >= 10 for index in out)
        (12, 2, 1)
    """
    tensor = torch.as_tensor(labels, dtype=torch.long)
    rng = generator(0, "split", purpose)
    out: list[int] = []
    for label in tensor.unique(sorted=True):
        members = (tensor == label).nonzero().flatten()
        count = max(1, round(share * len(members))) if len(members) > 1 else 0
        out += members[torch.randperm(len(members), generator=rng)[:count]].tolist()
    if not out:
        raise ExperimentError(
            f"no class has two samples, so none can be held out for {purpose}; add samples"
        )
    held = set(out)
    return [index for index in range(len(tensor)) if index not in held], sorted(held)


class Part:
    """A subset of a data set."""

    def __init__(self, samples: Samples, indices: Sequence[int]) -> None:
        self.samples, self.indices = samples, list(indices)
        self.classes: Sequence[str] = samples.classes

    def __len__(self) -> int:
        return len(self.indices)

    def load(self, index: int) -> tuple[Any, int]:
        """A stored sample and its label."""
        return self.samples.load(self.indices[index])

    def name(self, index: int) -> str:
        """Name of a sample in messages."""
        return self.samples.name(self.indices[index])


def hold_out(
    samples: Samples, labels: Sequence[int], share: float, purpose: str
) -> tuple[Part, Part]:
    """Samples to train on and samples held out; see `stratified`."""
    stay, out = stratified(labels, share, purpose)
    return Part(samples, stay), Part(samples, out)
