"""A global batch of 16,384 samples: memory that grows with M, and rows split among ranks."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from allocations import Allocations
from ranks import Ranks
from torch import Tensor

from atomsep.core import plain
from atomsep.core.distributed import Ranks as Group
from atomsep.core.distributed import loss_of_all
from atomsep.core.statistics import Statistics, Terms

SAMPLES, WIDTH = 16_384, 3
TERMS = Terms(2, 1e-2, "mean", 0.7, 1.3)


def draw() -> Statistics:
    generator = torch.Generator().manual_seed(4)
    count = torch.full((SAMPLES,), 8.0)
    protons, electrons, square = 8 * torch.rand(3, SAMPLES, generator=generator)
    radius = torch.rand(SAMPLES, generator=generator)
    nucleus = torch.randn(SAMPLES, WIDTH, generator=generator)
    table = Statistics.pack(protons, electrons, protons - electrons, square, radius, nucleus)
    return Statistics(table, count)


class Peak(Allocations):
    """The most bytes alive at a time, and the largest tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.peak = self.largest = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = super().__torch_dispatch__(func, types, args, kwargs)
        alive = {k: each for k, each in self._storages.items() if not each[0].expired()}
        self._storages = alive
        sizes = [size for _, size in alive.values()]
        self.peak, self.largest = max(self.peak, sum(sizes)), max(self.largest, *sizes, 0)
        return result


def share(rank: int) -> Any:
    """A rank's loss and gradient, and the memory that both took."""
    everyone, size = draw(), dist.get_world_size()
    height = SAMPLES // size
    own = slice(rank * height, (rank + 1) * height)
    table = everyone.table[own].clone().requires_grad_()
    mine = Statistics(table, everyone.count[own])
    with Peak() as memory:
        loss = loss_of_all(mine, TERMS, 0.7, Group("world").link(mine))
    [gradient] = torch.autograd.grad(loss, table)
    return loss.item(), gradient / size, memory.peak, memory.largest


def row_in_float64(everyone: Statistics, row: int) -> Tensor:
    """The gradient of the whole loss by one sample, from the pairs of that sample alone.

    Every pair with it counts twice in the sum over ordered pairs. Written out here, by autograd.
    """
    table = everyone.table.double()
    own = table[row].clone().requires_grad_()
    others = torch.cat([table[:row], table[row + 1 :]])
    tokens = 8.0
    distance = torch.linalg.vector_norm(own[5:] - others[:, 5:], dim=1)
    soft = (distance.square() + TERMS.softening**2).sqrt()
    further = soft + (own[4] + others[:, 4]) / 2
    net = (own[2] / tokens) * (others[:, 2] / tokens)
    opposite = (own[0] * others[:, 1] + own[1] * others[:, 0]) / tokens**2
    energy = (
        2 * (net / soft + opposite * (1 / soft - 1 / further)).sum() / (SAMPLES * (SAMPLES - 1))
    )
    neutral, occupied = (own[2] / tokens) ** 2, (own[3] / tokens - 2 / 3) ** 2
    loss = energy + (TERMS.neutrality * neutral + TERMS.occupancy * occupied) / SAMPLES
    [gradient] = torch.autograd.grad(0.7 * loss, own)
    return gradient


def test_16384_samples_take_memory_for_rows_not_for_pairs(four: Ranks) -> None:
    answers = four.run(share)
    for answer in answers:
        assert not isinstance(answer, str), answer
    losses, gradients, peaks, largest = zip(*answers, strict=True)
    assert len(set(losses)) == 1
    everyone = draw()
    for row in range(5, SAMPLES, 1111):  # of every rank
        rank, place = divmod(row, SAMPLES // 4)
        expected = row_in_float64(everyone, row)
        error = (gradients[rank][place].double() - expected).norm() / expected.norm()
        assert error < 1e-4, row
    pairs_of_rank = SAMPLES // 4 * SAMPLES * 4  # bytes
    assert max(largest) <= 4 * plain.pairs.BLOCK  # one number per pair, block by block
    assert max(peaks) < pairs_of_rank, "less than one number per pair of the rank"
