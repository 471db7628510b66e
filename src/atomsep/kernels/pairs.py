"""All pairs: the loss and its gradient from per-sample statistics, in one launch and a sum.

    E = (S_A S_B + Y rho) / d      Y = P_A G_B + G_A P_B,  rho = r̃ / (d + r̃)

A program holds a block of its own samples against all others, or against a share of them, block by
block: distances from exact differences, a chunk of features at a time; then the energies and their
slopes; then the chunks again for the gradient of the nuclei, which needs the finished distances.
Energy and gradient of one sample are sums over its own row, so no program adds to another's:
shares of a row are kept apart and added, in order, where the gradient is asked for.

Bytes: M (h' + 6) numbers in, as many out for each share of a row (8 at most, 1 from 4,096
samples on); nothing of size M x M. Arithmetic: 4 operations a pair and feature, forward and
gradient together, in float32; it bounds large M, and launching the kernel bounds small M.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl
from torch import Tensor

from atomsep.functional import OCCUPANCY_TARGET
from atomsep.kernels.blocks import ceil_div, pair_blocks

if TYPE_CHECKING:
    from atomsep.pairs import Terms
    from atomsep.statistics import Statistics

FIELDS = 5
"""Gradients a sample beside its nucleus's: the order of `Statistics`, without the count."""


def pairs_forward(
    statistics: Statistics, terms: Terms, gradient: bool
) -> tuple[Tensor, Tensor | None]:
    """The loss of a batch over all pairs, and its gradient.

    Args:
        statistics: of the samples, float32.
        terms: norm, softening, scale and the weights of the constraints.
        gradient: whether to compute it as well.

    Returns:
        The loss, a scalar, and what `pairs_backward` needs: shares of the gradient,
        `(shares, M (5 + h'))`; None if not asked for.
    """
    nucleus = statistics.nucleus.contiguous()
    samples, width = nucleus.shape
    blocks = pair_blocks(samples, width)
    own_blocks = ceil_div(samples, blocks.own)
    steps = ceil_div(ceil_div(samples, blocks.others), blocks.splits)
    losses = torch.empty(own_blocks * blocks.splits, dtype=torch.float32, device=nucleus.device)
    shares = None
    if gradient:
        size = samples * (FIELDS + width)
        shares = torch.empty(blocks.splits, size, dtype=torch.float32, device=nucleus.device)
    with torch.cuda.device_of(nucleus):
        pairs_kernel[(own_blocks, blocks.splits)](
            statistics.protons.contiguous(), statistics.electrons.contiguous(),
            statistics.charge_sum.contiguous(), statistics.charge_square.contiguous(),
            statistics.count.contiguous(), statistics.radius.contiguous(), nucleus, losses, shares,
            samples, width, steps, float(terms.softening), 1 / max(1, samples * (samples - 1)),
            terms.neutrality / samples, terms.occupancy / samples, OCCUPANCY_TARGET,
            NORM=terms.norm, MEAN=terms.scale == "mean", OWN=blocks.own, OTHERS=blocks.others,
            CHUNK=blocks.chunk, STAGES=blocks.stages, num_warps=blocks.warps,
            enable_fp_fusion=True,
        )  # fmt: skip
    return losses.sum() if len(losses) > 1 else losses.reshape(()), shares


def pairs_backward(shares: Tensor, grad: Tensor) -> Tensor:
    """The gradient from its shares.

    Args:
        shares: of `pairs_forward`.
        grad: of the loss, a scalar.

    Returns:
        `(M (5 + h'),)`: gradients of protons, electrons, charge sum, charge square and radius,
        `(5, M)`, then of the nucleus, `(M, h')`.
    """
    splits, size = shares.shape
    total = torch.empty(size, dtype=torch.float32, device=shares.device)
    block = 1024
    with torch.cuda.device_of(shares):
        scale_kernel[(ceil_div(size, block),)](
            shares, grad, total, size, splits, BLOCK=block, enable_fp_fusion=True
        )
    return total


@triton.jit
def scale_kernel(shares, grad, total, size, splits, BLOCK: tl.constexpr):
    """Total = grad times the sum of the shares."""
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = place < size
    sums = tl.zeros((BLOCK,), tl.float32)
    for _ in range(splits):
        sums += tl.load(shares + place, mask=inside, other=0.0)
        shares += size
    tl.store(total + place, sums * tl.load(grad), mask=inside)


@triton.jit
def pairs_kernel(
    protons, electrons, charge_sum, charge_square, count, radius, nucleus, losses, shares,
    samples, width, steps, softening, pair_weight, neutrality, occupancy, target,
    NORM: tl.constexpr, MEAN: tl.constexpr, OWN: tl.constexpr, OTHERS: tl.constexpr,
    CHUNK: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """One program: the pairs of OWN samples with `steps` blocks of others."""
    split = tl.program_id(1)
    own = tl.program_id(0) * OWN + tl.arange(0, OWN)
    inside = own < samples
    p, g, net, r, unit = read_samples(
        protons, electrons, charge_sum, count, radius, own, inside, MEAN
    )
    energy = tl.zeros((OWN,), tl.float32)
    g_protons = tl.zeros((OWN,), tl.float32)
    g_electrons = tl.zeros((OWN,), tl.float32)
    g_net = tl.zeros((OWN,), tl.float32)
    g_radius = tl.zeros((OWN,), tl.float32)
    if shares is not None:
        shares += split.to(tl.int64) * samples * (width + 5)
    for step in range(steps):
        other = (split * steps + step) * OTHERS + tl.arange(0, OTHERS)
        there = other < samples
        p_other, g_other, net_other, r_other, _ = read_samples(
            protons, electrons, charge_sum, count, radius, other, there, MEAN
        )
        length = tl.zeros((OTHERS, OWN), tl.float32)
        for start in tl.range(0, width, CHUNK, num_stages=STAGES):
            difference = differences(nucleus, own, inside, other, there, start, width, CHUNK)
            size = difference * difference if NORM == 2 else tl.abs(difference)
            length += tl.sum(size, axis=0)
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
        energy += tl.sum((product + opposite * rho) * inverse, axis=0)
        if shares is not None:
            near = rho * inverse
            g_protons += tl.sum(near * g_other[:, None], axis=0)
            g_electrons += tl.sum(near * p_other[:, None], axis=0)
            g_net += tl.sum(inverse * net_other[:, None], axis=0)
            g_radius += tl.sum(tl.where(pair, opposite * further * further, 0.0), axis=0)
            slope = -(product + opposite * rho * (2 - rho)) * inverse * inverse
            # d(softened)/d(raw) = raw / softened; norm 2 divides the difference by raw again.
            weight = slope * inverse if NORM == 2 else slope * (raw * inverse)
            weight *= 2 * pair_weight
            for start in tl.range(0, width, CHUNK, num_stages=STAGES):
                difference = differences(nucleus, own, inside, other, there, start, width, CHUNK)
                if NORM == 1:
                    above, below = difference > 0, difference < 0
                    difference = tl.where(above, 1.0, 0.0) - tl.where(below, 1.0, 0.0)
                part = tl.sum(difference * weight[None, :, :], axis=1)
                column = start + tl.arange(0, CHUNK)
                valid = (column < width)[:, None] & inside[None, :]
                at = own.to(tl.int64)[None, :] * width + column[:, None]
                at += samples * 5
                before = tl.load(shares + at, mask=valid & (step > 0), other=0.0)
                tl.store(shares + at, before + part, mask=valid)
    loss = energy * pair_weight
    squares = tl.load(charge_square + own, mask=inside, other=0.0)
    tokens = tl.load(count + own, mask=inside, other=0.0)
    excess = (squares - target * tokens) * unit
    if split == 0:
        loss += neutrality * net * net + occupancy * excess * excess
    tl.store(losses + tl.program_id(0) * tl.num_programs(1) + split, tl.sum(loss, axis=0))
    if shares is not None:
        first = (split == 0).to(tl.float32)
        of_net = 2 * unit * (pair_weight * g_net + first * neutrality * net)
        tl.store(shares + own, 2 * pair_weight * unit * g_protons, mask=inside)
        tl.store(shares + samples + own, 2 * pair_weight * unit * g_electrons, mask=inside)
        tl.store(shares + samples * 2 + own, of_net, mask=inside)
        tl.store(shares + samples * 3 + own, first * 2 * occupancy * excess * unit, mask=inside)
        tl.store(shares + samples * 4 + own, pair_weight * g_radius, mask=inside)


@triton.jit
def read_samples(protons, electrons, charge_sum, count, radius, at, inside, MEAN: tl.constexpr):
    """P, G and S in the loss's scale, the radius, and the scale's unit."""
    unit = tl.full(at.shape, 1.0, tl.float32)
    if MEAN:
        unit = 1 / tl.load(count + at, mask=inside, other=1.0)
    p = tl.load(protons + at, mask=inside, other=0.0) * unit
    g = tl.load(electrons + at, mask=inside, other=0.0) * unit
    net = tl.load(charge_sum + at, mask=inside, other=0.0) * unit
    return p, g, net, tl.load(radius + at, mask=inside, other=0.0), unit


@triton.jit
def differences(nucleus, own, inside, other, there, start, width, CHUNK: tl.constexpr):
    """Some features of own minus other nuclei, `(chunk, others, own)`.

    Features come first and own samples last: sums over features then stay within a thread, sums
    over others cross warps only, and no sum crosses the lanes of a warp.
    """
    column = start + tl.arange(0, CHUNK)
    valid = (column < width)[:, None]
    mine = tl.load(
        nucleus + own.to(tl.int64)[None, :] * width + column[:, None],
        mask=valid & inside[None, :], other=0.0,
    )  # fmt: skip
    theirs = tl.load(
        nucleus + other.to(tl.int64)[None, :] * width + column[:, None],
        mask=valid & there[None, :], other=0.0,
    )  # fmt: skip
    return mine[:, None, :] - theirs[:, :, None]


@triton.jit
def soften(raw, softening):
    """sqrt(d² + eps²), without overflow."""
    larger, smaller = tl.maximum(raw, softening), tl.minimum(raw, softening)
    ratio = smaller / tl.where(larger > 0, larger, 1.0)
    return larger * tl.sqrt(1 + ratio * ratio)
