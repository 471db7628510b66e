"""What ranks tell each other before they exchange statistics, so that all mean the same loss."""

from __future__ import annotations

import json
import time
import warnings
from collections import defaultdict
from collections.abc import Iterable
from datetime import timedelta
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch import Tensor

PATIENCE = 30
"""Seconds after which a rank says whom it is waiting for."""

LOST = (
    "the connection to the other ranks was lost before their atom losses could be compared; the "
    "process that hosts their store, usually rank 0, may have ended"
)

_links: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
"""What the links that the ranks of a group have made are about, by the group's name."""

_hosts: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()
"""Gloo groups of the hosts, by group."""


def compare(group: Any, about: dict[str, Any], samples: int) -> tuple[int, list[int]]:
    """Compare what the ranks are about; returns the link's number and each rank's samples.

    It goes through the store that the ranks met in, not through a collective: a rank that never
    comes is named, and ranks that disagree about the size of a collective cannot hang.
    """
    members, store = _members(group), dist.distributed_c10d._get_default_store()
    links = _links[members.group_name]
    links.append(about)
    number = len(links)
    start = f"atomsep/{members.group_name}/{number}"
    ranks = dist.get_process_group_ranks(members)
    try:
        store.set(f"{start}/{dist.get_rank()}", json.dumps([about, samples]))
    except RuntimeError as error:
        raise RuntimeError(LOST) from error
    answers = []
    for other in ranks:
        key = f"{start}/{other}"
        _wait(store, key, other)
        answers.append(json.loads(store.get(key)))
    for other, (theirs, _) in zip(ranks, answers, strict=True):
        ours = answers[0][0]
        what = _difference(ours, theirs)
        if what is not None:
            raise RuntimeError(
                f"the ranks do not have the same atom loss: {what} is {ours.get(what)!r} on "
                f"rank {ranks[0]} and {theirs.get(what)!r} on rank {other}. Attach to the same "
                f"layers with the same settings, in the same order, on every rank; create "
                f"learned maps from the same seed, or load the same weights into them"
            )
    return number, [count for _, count in answers]


def largest_of_hosts(hosts: Any, numbers: list[int]) -> list[int]:
    """The largest of each number that a host has; waits for the other hosts, and for no device."""
    tensor = torch.tensor(numbers, device="cpu")
    hosts.allreduce([tensor], dist.ReduceOp.MAX).wait()
    largest: list[int] = tensor.tolist()  # an int() would look like a wait for a device in a trace
    return largest


def check_order(group: Any, own: int, lowest: int, highest: int) -> None:
    """Raise unless all ranks mean the same link now.

    Args:
        group: of the ranks.
        own: the number of this rank's link.
        lowest: that of any rank's.
        highest: likewise.
    """
    if lowest == highest:
        return
    links = _links[_members(group).group_name]
    other = highest if own == lowest else lowest
    ours, theirs = links[own - 1], links[other - 1]
    what = _difference(ours, theirs)
    if what is None:
        how = f"number {own} here and number {other} on another rank, in the order of the first"
    else:
        how = f"{what} is {ours.get(what)!r} here and {theirs.get(what)!r} on another rank"
    raise RuntimeError(
        f"the ranks do not ask for the same atom loss: {how}. Call loss() of the attachments in "
        f"the same order on every rank, in every step (rank {dist.get_rank()})"
    )


def _difference(ours: dict[str, Any], theirs: dict[str, Any]) -> str | None:
    """What differs first."""
    names = dict.fromkeys([*ours, *theirs])
    return next((name for name in names if ours.get(name) != theirs.get(name)), None)


def connect_hosts(group: Any) -> Any:
    """A gloo group of the same processes, whatever the backend of theirs; one for all layers.

    All of them must ask for it at the same handshake. It is no group of `dist.new_group`, which
    numbers groups of some ranks in a way that differs between ranks.
    """
    members = _members(group)
    if members not in _hosts:
        store: Any = dist.distributed_c10d._get_default_store()
        own = dist.distributed_c10d.PrefixStore(f"atomsep/{members.group_name}/hosts", store)
        place = dist.get_rank(members), dist.get_world_size(members)
        _hosts[members] = dist.ProcessGroupGloo(own, *place, store.timeout)
    return _hosts[members]


def _members(group: Any) -> Any:
    return dist.group.WORLD if group is None else group


def _wait(store: Any, key: str, other: int) -> None:
    whole = store.timeout.total_seconds()
    if _comes(store, key, min(PATIENCE, whole)):
        return
    if whole > PATIENCE:
        warnings.warn(
            f"waiting for rank {other}, which has not asked for its atom loss yet",
            RuntimeWarning,
            stacklevel=2,
        )
    if not _comes(store, key, max(0.1, whole - PATIENCE)):
        raise RuntimeError(
            f"rank {other} did not ask for its atom loss within {whole:.0f} seconds. Call loss() "
            f"on every rank, or form pairs within each rank: AtomLoss(group=None)"
        )


def _comes(store: Any, key: str, patience: float) -> bool:
    """Whether a key is there within some seconds; stores have no error of their own for that."""
    start = time.monotonic()
    try:
        store.wait([key], timedelta(seconds=patience))
    except RuntimeError as error:
        if time.monotonic() - start < 0.9 * patience:
            raise RuntimeError(LOST) from error
        return False
    return True


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
