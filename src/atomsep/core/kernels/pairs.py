"""All pairs: the loss and its gradient from per-sample statistics, in two launches.

    E = (S_A S_B + Y rho) / d      Y = P_A G_B + G_A P_B,  rho = r̃ / (d + r̃)

A program compares a block of its own samples with others, block by block: distances from exact
differences, one chunk of features at a time; then the energies and their slopes; then the chunks
again for the gradient of the nuclei, which needs the finished distances. Energy and gradient of a
sample are sums over its own row, so no program adds to another's. The others are all samples, or a
share of them where there are too few samples to fill the chip. A second launch adds up, in order,
the losses of the programs, and the parts of the gradient where rows were shared.

It reads M (h' + 6) numbers and writes as many, times the number of parts; nothing has size M x M.
Where several processes share the samples, each takes the rows of its own against all.
Forward and gradient take 9 float32 operations per pair and feature, which limits large M; launching
the kernels limits small M.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from atomsep.core.kernels.blocks import GATHERED, ceil_div, pair_blocks
from atomsep.core.kernels.launch import Launch, on
from atomsep.core.kernels.tile import directions, sizes
from atomsep.core.statistics import FIELDS
from atomsep.functional import OCCUPANCY_TARGET

if TYPE_CHECKING:
    from atomsep.core.statistics import Terms


def pair_loss(
    table: Tensor, count: Tensor, terms: Terms, weight: float, gradient: bool
) -> tuple[Tensor, Tensor | None]:
    """See `atomsep.core.backend.Backend`."""
    rows = slice(0, len(table))
    return _sum_rows(table, count, terms, weight, gradient, rows, None, None)


def pair_loss_of_rows(
    table: Tensor,
    count: Tensor,
    terms: Terms,
    weight: float,
    own: slice,
    absent: Tensor,
    samples: Tensor,
) -> tuple[Tensor, Tensor | None]:
    """See `atomsep.core.backend.RowsBackend`."""
    if own.start == own.stop:
        return table.new_zeros(()), table[own]
    return _sum_rows(table, count, terms, weight, True, own, absent, samples)


def _sum_rows(
    table: Tensor,
    count: Tensor,
    terms: Terms,
    weight: float,
    gradient: bool,
    own: slice,
    absent: Tensor | None,
    present: Tensor | None,
) -> tuple[Tensor, Tensor | None]:
    table = table.contiguous()
    given = own.start, own.stop - own.start, present is not None
    plan = _plan(*table.shape, *given, table.device, terms, gradient, count.dtype)
    losses = torch.empty(plan.programs, dtype=torch.float32, device=table.device)
    slopes = parts = None
    if gradient:
        # Without an energy no pair is read, and nothing else writes the slopes of the nuclei.
        slopes = parts = (torch.empty_like if terms.energy else torch.zeros_like)(table[own])
        if plan.splits > 1:  # each part of the others has its own sums
            parts = table.new_empty(plan.splits, *slopes.shape)
    with on(table.device):
        plan.pairs((table, count, losses, parts, absent, present), (weight,))
        if plan.programs == 1:
            return losses.reshape(()), slopes
        loss = losses.new_empty(())
        split = parts is not slopes
        plan.gather((parts if split else None, losses, slopes if split else None, loss))
    return loss, slopes


class _Plan(NamedTuple):
    """Launches for tables of one size: the pairs, and their sums."""

    programs: int
    splits: int
    pairs: Launch
    gather: Launch


@lru_cache(maxsize=1024)
def _plan(
    samples: int,
    pitch: int,
    start: int,
    owned: int,
    counted: bool,
    device: torch.device,
    terms: Terms,
    gradient: bool,
    *kinds: object,
) -> _Plan:
    """The plan for `owned` rows, from `start` on, of tables of this size.

    Args:
        samples: rows of the table.
        pitch: columns of the table.
        start: the first row whose sums are wanted.
        owned: how many.
        counted: whether the device alone knows how many rows stand for samples.
        device: where the table is.
        terms: what the loss consists of.
        gradient: whether it is wanted.
        kinds: types of the other tensors.
    """
    blocks = pair_blocks(samples, pitch - FIELDS, owned)
    share = blocks.others * ceil_div(ceil_div(samples, blocks.others), blocks.splits)
    splits = ceil_div(samples, share)
    if not terms.energy:  # constraints alone: no others
        share, splits = 0, 1
    programs = ceil_div(owned, blocks.own) * splits
    number = 1 if counted else samples  # the kernel divides
    pairs = 1 if counted else max(1, samples * (samples - 1))
    numbers = (
        *(samples, pitch, start, owned, splits, share, float(terms.softening)),
        *(terms.energy / pairs, terms.neutrality / number),
        *(terms.occupancy / number, OCCUPANCY_TARGET),
    )
    constants = {
        "NORM": terms.norm, "MEAN": terms.scale == "mean", "OWN": blocks.own,
        "OTHERS": blocks.others, "CHUNK": blocks.chunk,
    }  # fmt: skip
    size = owned * pitch
    grid = ceil_div(size, GATHERED) if gradient and splits > 1 else 1
    return _Plan(
        programs,
        splits,
        Launch(pairs_kernel, device, (programs,), numbers, blocks.warps, constants),
        Launch(gather_kernel, device, (grid,), (size, splits, programs), 4, {"GATHERED": GATHERED}),
    )


@triton.jit
def pairs_kernel(
    table, count, losses, slopes, absent, present, weight,
    samples, pitch, start, owned, splits, share, softening,
    pair_weight, neutrality, occupancy, target,
    NORM: tl.constexpr, MEAN: tl.constexpr, OWN: tl.constexpr, OTHERS: tl.constexpr,
    CHUNK: tl.constexpr,
):  # fmt: skip
    """One program: the pairs of OWN samples with a share of the others."""
    if present is not None:
        number = tl.load(present).to(tl.float32)
        pair_weight /= tl.maximum(number * (number - 1), 1.0)
        neutrality /= number
        occupancy /= number
    pair_weight *= weight
    neutrality *= weight
    occupancy *= weight
    width = pitch - 5
    split = tl.program_id(0) % splits
    row = tl.program_id(0) // splits * OWN + tl.arange(0, OWN)
    own = start + row
    inside = row < owned
    once = (split == 0).to(tl.float32)  # for what does not depend on others
    neutrality *= once
    occupancy *= once
    if slopes is not None:
        slopes += split.to(tl.int64) * owned * pitch
    first = split * share
    p, g, net, r, unit = read_samples(table, count, pitch, own, inside, MEAN)
    # Sums over others, not yet added up within a block.
    energy = tl.zeros((OTHERS, OWN), tl.float32)
    g_protons = tl.zeros((OTHERS, OWN), tl.float32)
    g_electrons = tl.zeros((OTHERS, OWN), tl.float32)
    g_net = tl.zeros((OTHERS, OWN), tl.float32)
    g_radius = tl.zeros((OTHERS, OWN), tl.float32)
    own_at = own.to(tl.int64) * pitch
    row_at = row.to(tl.int64) * pitch
    for done in range(0, share, OTHERS):
        other = first + done + tl.arange(0, OTHERS)
        there = other < samples
        if absent is not None:
            there = there & (tl.load(absent + other, mask=there, other=1) == 0)
        p_other, g_other, net_other, r_other, _ = read_samples(
            table, count, pitch, other, there, MEAN
        )
        length = tl.zeros((OTHERS, OWN), tl.float32)
        for chunk in tl.range(0, width, CHUNK, num_stages=1):
            mine, theirs = read_nuclei(table, own, inside, other, there, chunk, pitch, CHUNK)
            # Features first: their sum stays within a thread.
            difference = mine[:, None, :] - tl.trans(theirs)[:, :, None]
            length += tl.sum(sizes(difference, NORM), axis=0)
        pair = inside[None, :] & there[:, None] & (own[None, :] != other[:, None])
        # A sample is replaced before dividing by its distance to itself.
        raw = tl.where(pair, tl.sqrt(length) if NORM == 2 else length, 1.0)
        distance = soften(raw, softening)
        inverse = tl.where(pair, 1 / distance, 0.0)
        mean_radius = (r_other[:, None] + r[None, :]) * 0.5
        further = 1 / (distance + mean_radius)
        rho = mean_radius * further
        product = net_other[:, None] * net[None, :]
        opposite = p_other[:, None] * g[None, :] + g_other[:, None] * p[None, :]
        energy += (product + opposite * rho) * inverse
        if slopes is not None:
            near = rho * inverse
            g_protons += near * g_other[:, None]
            g_electrons += near * p_other[:, None]
            g_net += inverse * net_other[:, None]
            g_radius += tl.where(pair, opposite * further * further, 0.0)
            slope = -(product + opposite * rho * (2 - rho)) * inverse * inverse
            # d(softened)/d(raw) = raw / softened; norm 2 divides the difference by raw again.
            push = slope * inverse if NORM == 2 else slope * (raw * inverse)
            push *= 2 * pair_weight
            for chunk in tl.range(0, width, CHUNK, num_stages=1):
                mine, theirs = read_nuclei(table, own, inside, other, there, chunk, pitch, CHUNK)
                # Others first: now it is their sum that stays within a thread.
                difference = mine[None, :, :] - theirs[:, :, None]
                part = tl.sum(directions(difference, NORM) * push[:, None, :], axis=0)
                column = chunk + tl.arange(0, CHUNK)
                valid = (column < width)[:, None] & inside[None, :]
                at = slopes + row_at[None, :] + 5 + column[:, None]
                before = tl.load(at, mask=valid & (done > 0), other=0.0)
                tl.store(at, before + part, mask=valid)
            tl.debug_barrier()  # another thread may add to it in the next block
    squares = tl.load(table + own_at + 3, mask=inside, other=0.0)
    tokens = tl.load(count + own, mask=inside, other=0.0)
    excess = (squares - target * tokens) * unit
    constraints = neutrality * net * net + occupancy * excess * excess
    loss = tl.sum(energy, axis=0) * pair_weight + constraints
    tl.store(losses + tl.program_id(0), tl.sum(tl.where(inside, loss, 0.0), axis=0))
    if slopes is not None:
        twice = 2 * pair_weight * unit
        of_net = twice * tl.sum(g_net, axis=0) + 2 * unit * neutrality * net
        tl.store(slopes + row_at, twice * tl.sum(g_protons, axis=0), mask=inside)
        tl.store(slopes + row_at + 1, twice * tl.sum(g_electrons, axis=0), mask=inside)
        tl.store(slopes + row_at + 2, of_net, mask=inside)
        tl.store(slopes + row_at + 3, 2 * occupancy * excess * unit, mask=inside)
        tl.store(slopes + row_at + 4, pair_weight * tl.sum(g_radius, axis=0), mask=inside)


@triton.jit
def gather_kernel(parts, losses, slopes, loss, size, splits, programs, GATHERED: tl.constexpr):
    """One program: some numbers of the gradient, added in order; the first also adds the loss."""
    place = tl.arange(0, GATHERED)
    if parts is not None:
        at = tl.program_id(0).to(tl.int64) * GATHERED + place
        sums = tl.zeros((GATHERED,), tl.float32)
        for split in range(splits):
            of_split = parts + tl.cast(split, tl.int64) * size
            sums += tl.load(of_split + at, mask=at < size, other=0.0)
        tl.store(slopes + at, sums, mask=at < size)
    if tl.program_id(0) == 0:
        total = tl.zeros((GATHERED,), tl.float32)
        for start in range(0, programs, GATHERED):
            total += tl.load(losses + start + place, mask=start + place < programs, other=0.0)
        tl.store(loss, tl.sum(total, axis=0))


@triton.jit
def read_samples(table, count, pitch, sample, inside, MEAN: tl.constexpr):
    """P, G and S in the loss's scale, the radius, and the scale's unit."""
    at = table + sample.to(tl.int64) * pitch
    unit = tl.full(sample.shape, 1.0, tl.float32)
    if MEAN:
        unit = 1 / tl.load(count + sample, mask=inside, other=1.0)
    p = tl.load(at, mask=inside, other=0.0) * unit
    g = tl.load(at + 1, mask=inside, other=0.0) * unit
    net = tl.load(at + 2, mask=inside, other=0.0) * unit
    return p, g, net, tl.load(at + 4, mask=inside, other=0.0), unit


@triton.jit
def read_nuclei(table, own, inside, other, there, start, pitch, CHUNK: tl.constexpr):
    """Some features of own and other nuclei, `(chunk, own)` and `(others, chunk)`."""
    column = start + tl.arange(0, CHUNK)
    valid = column < pitch - 5
    nuclei = table + 5
    mine = tl.load(
        nuclei + own.to(tl.int64)[None, :] * pitch + column[:, None],
        mask=valid[:, None] & inside[None, :], other=0.0,
    )  # fmt: skip
    theirs = tl.load(
        nuclei + other.to(tl.int64)[:, None] * pitch + column[None, :],
        mask=there[:, None] & valid[None, :], other=0.0,
    )  # fmt: skip
    return mine, theirs


@triton.jit
def soften(raw, softening):
    """sqrt(d² + eps²), without overflow."""
    larger, smaller = tl.maximum(raw, softening), tl.minimum(raw, softening)
    ratio = smaller / tl.where(larger > 0, larger, 1.0)
    return larger * tl.sqrt(1 + ratio * ratio)
