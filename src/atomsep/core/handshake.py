"""What ranks tell each other before they exchange statistics, so that all mean the same loss."""

from __future__ import annotations

import json
import warnings
from collections import Counter
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

PATIENCE = 30
"""Seconds after which a rank says whom it is waiting for."""

_exchanges: Counter[str] = Counter()
"""How many links the ranks of a group have made, by the group's name."""


def compare(group: Any, about: dict[str, Any], samples: int) -> list[int]:
    """Compare what the ranks are about; returns how many samples each has.

    It goes through the store that the ranks met in, not through a collective: a rank that never
    comes is named, and ranks that disagree about the size of a collective cannot hang.
    """
    store = dist.distributed_c10d._get_default_store()
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    members = dist.group.WORLD if group is None else group
    assert members is not None
    name = members.group_name
    _exchanges[name] += 1
    start = f"atomsep/{name}/{_exchanges[name]}"
    store.set(f"{start}/{rank}", json.dumps([about, samples]))
    answers = []
    for other in range(size):
        key = f"{start}/{other}"
        _wait(store, key, other)
        answers.append(json.loads(store.get(key)))
    for other, (theirs, _) in enumerate(answers):
        ours = answers[0][0]
        for what in dict.fromkeys([*ours, *theirs]):
            if theirs.get(what) != ours.get(what):
                raise RuntimeError(
                    f"the ranks do not have the same atom loss: {what} is {ours.get(what)!r} on "
                    f"rank 0 and {theirs.get(what)!r} on rank {other}. Attach to the same layers "
                    f"with the same settings, in the same order, on every rank; create learned "
                    f"maps from the same seed, or load the same weights into them"
                )
    return [count for _, count in answers]


def _wait(store: Any, key: str, other: int) -> None:
    whole = store.timeout.total_seconds()
    try:
        store.wait([key], timedelta(seconds=min(PATIENCE, whole)))
        return
    except RuntimeError:
        if whole > PATIENCE:
            warnings.warn(
                f"waiting for rank {other}, which has not asked for its atom loss yet",
                RuntimeWarning,
                stacklevel=2,
            )
    try:
        store.wait([key], timedelta(seconds=max(0.1, whole - PATIENCE)))
    except RuntimeError:
        raise RuntimeError(
            f"rank {other} did not ask for its atom loss within {whole:.0f} seconds. Call loss() "
            f"on every rank, or form pairs within each rank: AtomLoss(group=None)"
        ) from None


@torch.no_grad()
def checksum(parameters: Iterable[Tensor]) -> int:
    """A number that changes with any bit of the parameters, on whatever device they are.

    Integers are added, so the order of the sum cannot change it. Sharded parameters are left out:
    their ranks hold different parts of one tensor.
    """
    total = 0
    for parameter in parameters:
        if hasattr(parameter, "to_local"):  # a DTensor
            continue
        number = parameter.detach().contiguous().flatten().view(torch.uint8).long()
        place = torch.arange(len(number), device=number.device) % 65_521 + 1
        total = (31 * total + int((number * place).sum())) % 2**53
    return total
