r"""Pairs across processes: one loss over the samples of all ranks.

The statistics of a sample are a row of about h numbers, so every rank can have those of all. They
are gathered once, when the loss is asked for. A rank then sums the rows of its own samples over all
others. The energy is symmetric, so twice the gradient of these rows, with the other samples held
fixed, is the gradient of the whole loss with respect to the rank's own samples: the backward pass
needs no collective.

Data-parallel training divides the sum of all gradients by the number of ranks. So that the result
is the gradient of one process on the concatenated batch, each rank's is multiplied by it here.

Ranks may have different numbers of samples, also none. All send a block of the same height, and its
first row says how many of the others stand for samples, so no number has to leave the device. It
says of which layer they are, too: ranks that ask for losses in different orders must not mix them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from atomsep.core.averaging import Maps
from atomsep.core.backend import backend_of
from atomsep.core.handshake import check_order, compare, connect_hosts, largest_of_hosts
from atomsep.core.reference import constraint_terms, listed_energy
from atomsep.core.statistics import FIELDS, Statistics, Terms


class Ranks:
    """The processes whose samples form one batch, and how they exchange statistics.

    Args:
        group: a `torch.distributed` process group, "world" for all ranks, or None for this one.

    Attributes:
        gathered: what was exchanged last; rows with a count of 0 stand for nobody.
        maps: learned maps, whose gradients are averaged over the processes.
    """

    def __init__(self, group: Any) -> None:
        if not (group is None or group == "world" or isinstance(group, dist.ProcessGroup)):
            raise TypeError(
                f'group must be "world", None or a torch.distributed process group, not {group!r}'
            )
        self.group = group
        self.gathered: Statistics | None = None
        self.maps = Maps(self._handle)
        self.links: dict[tuple[Any, ...], Link] = {}

    def __deepcopy__(self, memo: Any) -> Ranks:
        """A copy belongs to the same group, and makes links of its own."""
        return Ranks(self.group)

    def __reduce__(self) -> tuple[Any, ...]:
        """A process group cannot be stored: a stored one becomes "world"."""
        return Ranks, (None if self.group is None else "world",)

    @property
    def several(self) -> bool:
        """Whether there is more than one."""
        if self.group is None or not (dist.is_available() and dist.is_initialized()):
            return False
        return dist.get_world_size(self._handle) > 1

    def total(self, values: Tensor) -> Tensor:
        """The sum over the processes, each of which must ask, after their first loss."""
        summed = values.to(next(iter(self.links.values())).device, copy=True)
        dist.all_reduce(summed, group=self._handle)
        return summed

    @property
    def _handle(self) -> Any:
        return None if self.group == "world" else self.group

    def link(
        self, statistics: Statistics, at_first: Callable[[], dict[str, Any]] = dict, **about: Any
    ) -> Link:
        """The exchange of the statistics of one layer.

        Args:
            statistics: of this rank's samples.
            at_first: gives what must be equal when the link is made, and may change later.
            **about: what must be equal on all ranks and stays as it is.
        """
        samples, width = statistics.table.shape
        about |= {"features": width - FIELDS, "dtype": str(statistics.table.dtype)}
        key = tuple(about.values())
        if key not in self.links:
            self.links[key] = Link(self, about | at_first(), samples, statistics.table.device)
            self.maps.agreed()
        return self.links[key]


class Everyone(NamedTuple):
    """The statistics of all ranks' samples.

    Attributes:
        rows: table and counts, with rows that stand for nobody.
        absent: true on those.
        samples: how many samples there are, a scalar.
        own: the rows of this rank's samples.
    """

    rows: tuple[Tensor, Tensor]
    absent: Tensor
    samples: Tensor
    own: slice


class Link:
    """How the ranks of a group exchange the statistics of one layer.

    The first exchange makes sure that all ranks mean the same loss, and agrees on the height of the
    blocks: the largest number of samples that a rank has then. Where a rank has more later, the
    blocks grow. On the CPU the ranks see that in the blocks, and exchange higher ones. A GPU cannot
    be asked without waiting for it, so there the hosts tell each other beforehand, over gloo. With
    the sizes they compare the links' numbers.

    Args:
        ranks: the processes.
        about: what must be equal on all ranks, by name.
        samples: how many samples this rank has.
        device: where the statistics are.

    Raises:
        RuntimeError: the ranks differ, or one of them does not come.
    """

    def __init__(
        self, ranks: Ranks, about: dict[str, Any], samples: int, device: torch.device
    ) -> None:
        self.ranks, self.group, self.device = ranks, ranks._handle, device
        self.rank, self.size = dist.get_rank(self.group), dist.get_world_size(self.group)
        self.number, sizes = compare(self.group, about, samples)
        self.capacity = max(1, *sizes)
        self.hosts = None if _at_hand(device) else connect_hosts(self.group)

    @torch.no_grad()
    def gather(self, table: Tensor, count: Tensor) -> Everyone:
        """The statistics of all ranks.

        Raises:
            RuntimeError: another rank asks for the statistics of another layer.
        """
        samples, width = table.shape
        if self.hosts is not None:
            numbers = [samples, self.number, -self.number]
            most, highest, negated = largest_of_hosts(self.hosts, numbers)
            check_order(self.group, self.number, -negated, highest)
            self.capacity = max(self.capacity, most)
        height = 1 + self.capacity
        block = table.new_zeros(height, width + 1)
        block[0, 0].fill_(samples)  # an assignment would copy from the host, which waits
        block[0, 1].fill_(self.number)
        if samples <= self.capacity:
            block[1 : 1 + samples, :width] = table
            block[1 : 1 + samples, width] = count
        everything = block.new_empty(self.size * height, width + 1)
        dist.all_gather_into_tensor(everything, block, group=self.group)
        blocks = everything.view(self.size, height, width + 1)
        sizes = blocks[:, 0, 0]
        if self.hosts is None:
            ends = blocks[:, 0, 1].aminmax()
            check_order(self.group, self.number, int(ends.min), int(ends.max))
            if sizes.max() > self.capacity:
                self.capacity = int(sizes.max())
                return self.gather(table, count)
        rows = blocks[:, 1:].flatten(0, 1)
        place = torch.arange(self.capacity, device=table.device)
        absent = (place >= sizes.unsqueeze(1)).flatten()
        self.ranks.gathered = Statistics(rows[:, :width], rows[:, width])
        # A count of 1 keeps means over the tokens of nobody finite.
        counts = rows[:, width].masked_fill(absent, 1)
        start = self.rank * self.capacity
        return Everyone(
            (rows[:, :width], counts), absent, sizes.sum(), slice(start, start + samples)
        )


def _at_hand(device: torch.device) -> bool:
    """Whether the host can read what is on a device without waiting for it."""
    return device.type == "cpu"


def loss_of_all(statistics: Statistics, terms: Terms, weight: float, link: Link) -> Tensor:
    """The loss over the samples of all ranks and all their pairs, equal on every rank."""
    loss: Tensor = _AllPairs.apply(statistics.table, statistics.count, terms, weight, link)
    return loss


class _AllPairs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, table: Tensor, count: Tensor, terms: Terms, weight: float, link: Link
    ) -> Tensor:
        (rows, counts), absent, samples, own = link.gather(table, count)
        if weight:
            loss, gradient = backend_of(rows).pair_loss_of_rows(
                rows, counts, terms, weight, own, absent, samples
            )
        else:  # not multiplied by 0, which leaves NaN of an infinite energy
            loss, gradient = table.new_zeros(()), torch.zeros_like(table)
        dist.all_reduce(loss, group=link.group)
        ctx.save_for_backward(gradient * link.size)
        return loss

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():  # the other ranks' samples are held fixed here
            raise RuntimeError(
                "the gradient of an atom loss across processes cannot be differentiated again; "
                "pass AtomLoss(group=None) to form pairs within each process"
            )
        [gradient] = ctx.saved_tensors
        return gradient * grad, None, None, None, None


def loss_of_drawn(
    statistics: Statistics, terms: Terms, weight: float, link: Link, generator: torch.Generator
) -> Tensor:
    """The same with as many random pairs as there are samples.

    All ranks draw the same pairs, so each computes the whole loss; its own rows have a gradient.
    """
    (rows, counts), absent, samples, own = link.gather(statistics.table, statistics.count)
    if not weight:
        return statistics.zero()
    rows = rows.index_copy(
        0, torch.arange(own.start, own.stop, device=rows.device), statistics.table
    )
    everyone = Statistics(rows, counts)
    loss = constraint_terms(everyone, terms).masked_fill(absent, 0).sum() / samples
    if terms.energy:
        loss = loss + terms.energy * _drawn_energy(everyone, absent, samples, terms, generator)
    loss = weight * loss
    return loss.detach() + link.size * (loss - loss.detach())


def _drawn_energy(
    everyone: Statistics,
    absent: Tensor,
    samples: Tensor,
    terms: Terms,
    generator: torch.Generator,
) -> Tensor:
    """Mean energy of random pairs, as many as there are samples."""
    number = len(absent)
    places = absent.to(torch.uint8).argsort(stable=True)  # samples first
    draw = torch.rand(2, number, generator=generator, device=absent.device, dtype=torch.float64)
    first = (draw[0] * samples).long()
    second = (first + 1 + (draw[1] * (samples - 1)).long()) % samples.long().clamp_min(1)
    # As many pairs as samples; a sample is never paired with itself, and a single one with nobody.
    drawn = torch.arange(number, device=absent.device) < samples * (samples > 1)
    # The others are left out, but without softening they need a distance for a finite gradient.
    second = second.where(drawn, (first + 1) % number)
    energies = listed_energy(everyone, places[first], places[second], terms)
    return energies.where(drawn, 0).sum() / samples
