"""Hold out the same share of every class, and the same samples in every run."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from atomsep.experiments.errors import ExperimentError
from atomsep.experiments.randomness import generator


def stratified(labels: Sequence[int], share: float, purpose: str) -> tuple[list[int], list[int]]:
    """Indices that stay and indices that are held out, both in ascending order.

    The choice depends only on the purpose, not on the seed of a run: all runs on a data set share
    one split. A class with one sample keeps it; a larger one gives at least one.

    Args:
        labels: classes of all samples.
        share: share of every class that is held out.
        purpose: such as "test" or "validation"; each draws its own samples.

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
        count = min(max(1, round(share * len(members))), len(members) - 1)
        out += members[torch.randperm(len(members), generator=rng)[:count]].tolist()
    if not out:
        raise ExperimentError(
            f"no class has two samples, so none can be held out for {purpose}; add samples"
        )
    held = set(out)
    return [index for index in range(len(tensor)) if index not in held], sorted(held)
