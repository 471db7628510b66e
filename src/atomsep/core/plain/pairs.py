r"""From per-sample statistics to the loss: every pair of samples, in memory that grows with M.

The energy is symmetric, so the gradient of the sum over all ordered pairs with respect to one
sample is twice that of its own row with the others held fixed. Rows are worked on in blocks, and
distances are computed again in the backward pass rather than kept:

    E = (S_A S_B + Y rho) / d      Y = P_A G_B + G_A P_B,  rho = r̃ / (d + r̃)
    dE/dd = -(S_A S_B + Y rho (2 - rho)) / d²      dE/dr̃ = Y / (d + r̃)²
    dE/dS_A = S_B / d      dE/dP_A = G_B rho / d      dE/dG_A = P_B rho / d
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from atomsep.checks import Norm, Scale
from atomsep.core import kernels
from atomsep.core.backend import for_pairs
from atomsep.core.statistics import Statistics
from atomsep.functional import (
    OCCUPANCY_TARGET,
    AtomStatistics,
    coulomb,
    neutrality,
    nuclear_distance,
    occupancy,
    scale_unit,
    soften,
)


class Terms(NamedTuple):
    """What the loss is made of: `mean E + neutrality · (...) + occupancy · (...)`."""

    norm: Norm
    softening: float
    scale: Scale
    neutrality: float
    occupancy: float


def total_loss(
    statistics: Statistics,
    terms: Terms,
    pairs: tuple[Tensor, Tensor] | None = None,
    weight: float = 1.0,
) -> Tensor:
    """The loss of a batch, a scalar.

    Args:
        statistics: of the samples.
        terms: norm, softening, scale and the weights of the constraints.
        pairs: indices of the first and second samples of the pairs to take; None for all.
        weight: factor of the loss.
    """
    if pairs is None:
        table, count, roomy = statistics.table, statistics.count, statistics.roomy
        if torch.compiler.is_compiling():  # which would compile anew for every other weight
            return weight * cast(Tensor, _AllPairs.apply(table, count, terms, roomy, 1.0))
        return cast(Tensor, _AllPairs.apply(table, count, terms, roomy, weight))
    energy = listed_energy(statistics, *pairs, terms)
    mean = energy.mean() if len(energy) else 0 * statistics.nucleus.sum()
    return weight * (mean + constraints(statistics, terms))


def constraints(statistics: AtomStatistics, terms: Terms) -> Tensor:
    """Weighted mean over samples of neutrality and occupancy."""
    return (
        terms.neutrality * neutrality(statistics, terms.scale)
        + terms.occupancy * occupancy(statistics, terms.scale)
    ).mean()


def listed_energy(
    statistics: AtomStatistics, first: Tensor, second: Tensor, terms: Terms
) -> Tensor:
    """Energy of the pairs (first[i], second[i]) by plain formulas, differentiable twice."""
    unit = scale_unit(statistics.count, terms.scale)
    net = statistics.charge_sum * unit
    protons, electrons = statistics.protons * unit, statistics.electrons * unit
    difference = statistics.nucleus[first] - statistics.nucleus[second]
    if terms.norm == 2:
        distance = (difference.square().sum(-1) + terms.softening**2).sqrt()
    else:
        distance = soften(difference.abs().sum(-1, keepdim=True), terms.softening).squeeze(-1)
    opposite = protons[first] * electrons[second] + electrons[first] * protons[second]
    mean_radius = (statistics.radius[first] + statistics.radius[second]) / 2
    return coulomb(net[first] * net[second], opposite, mean_radius, distance)


def mean_energy(statistics: Statistics, terms: Terms) -> Tensor:
    """Mean over all pairs of the energy; 0 for a single sample. Not differentiable."""
    return _mean_over_pairs(rows.energy() for rows in row_blocks(statistics, terms))


def mean_distance(statistics: Statistics, terms: Terms) -> Tensor:
    """Mean over all pairs of the distance of nuclei, unsoftened; 0 for a single sample."""
    return _mean_over_pairs(rows.raw for rows in row_blocks(statistics, terms))


def _mean_over_pairs(blocks: Iterator[Tensor]) -> Tensor:
    sums = [(block.sum(), block.shape) for block in blocks]
    samples = sums[0][1][1]
    return torch.stack([total for total, _ in sums]).sum() / max(1, samples * (samples - 1))


class _AllPairs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, table: Tensor, count: Tensor, terms: Terms, roomy: bool, weight: float
    ) -> Tensor:
        ctx.terms, ctx.weight, ctx.slopes = terms, weight, None
        if for_pairs(table):
            keep = roomy and ctx.needs_input_grad[0]
            loss, ctx.slopes = kernels.pairs_forward(table, count, terms, keep, weight)
        else:
            statistics = Statistics(table, count)
            loss = weight * (mean_energy(statistics, terms) + constraints(statistics, terms))
        ctx.save_for_backward(table, count)
        return loss

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        [grad] = grads
        table, count = ctx.saved_tensors
        rest = (None, None, None, None)
        if torch.is_grad_enabled() and not torch.compiler.is_compiling():
            grad = ctx.weight * grad
            return _differentiable_backward(Statistics(table, count), ctx.terms, grad), *rest
        if ctx.slopes is not None:
            return ctx.slopes * grad, *rest
        if for_pairs(table):
            return kernels.pairs_gradient(table, count, ctx.terms, grad, ctx.weight), *rest
        with torch.autocast(grad.device.type, enabled=False):
            grad = ctx.weight * grad
            return backward_blocks(Statistics(table, count), ctx.terms, grad), *rest


def backward_blocks(statistics: Statistics, terms: Terms, grad: Tensor) -> Tensor:
    """The gradient of the table of statistics."""
    count = statistics.count
    samples = len(count)
    unit = scale_unit(count, terms.scale)
    blocks = [rows.gradient() for rows in row_blocks(statistics, terms)]
    protons, electrons, net, radius, nucleus = (
        torch.cat(part) for part in zip(*blocks, strict=True)
    )
    pair_weight = 2 * grad / max(1, samples * (samples - 1))
    sample_weight = 2 * grad / samples
    excess = (statistics.charge_square - OCCUPANCY_TARGET * count) * unit
    return Statistics.pack(
        protons=protons * unit * pair_weight,
        electrons=electrons * unit * pair_weight,
        charge_sum=net * unit * pair_weight
        + statistics.charge_sum * unit * unit * (terms.neutrality * sample_weight),
        charge_square=excess * unit * (terms.occupancy * sample_weight),
        radius=radius * pair_weight,
        nucleus=nucleus * pair_weight,
    )


BLOCK = 1 << 22
"""Numbers of a block: one a pair, on a GPU one for each feature of a pair."""


def row_blocks(statistics: Statistics, terms: Terms) -> Iterator[_Rows]:
    """Blocks of rows of the matrix of pairs."""
    samples, features = statistics.nucleus.shape
    # The gradient of torch.cdist takes a temporary of all features of all pairs on a GPU alone.
    each = samples if statistics.nucleus.device.type == "cpu" else samples * features
    step = max(1, BLOCK // max(each, 1))
    for start in range(0, samples, step):
        yield _Rows(statistics, terms, slice(start, min(start + step, samples)))


class _Rows:
    """The pairs of some samples with all others, charges in the loss's scale."""

    def __init__(self, statistics: Statistics, terms: Terms, rows: slice) -> None:
        self.norm = terms.norm
        self.nucleus, self.own_nucleus = statistics.nucleus, statistics.nucleus[rows]
        self.raw = nuclear_distance(self.own_nucleus, self.nucleus, terms.norm)
        index = torch.arange(len(self.nucleus), device=self.nucleus.device)
        self.same = index[rows].unsqueeze(1) == index
        self.distance = soften(self.raw.masked_fill(self.same, 1), terms.softening)
        radius = statistics.radius
        self.mean_radius = (radius[rows].unsqueeze(1) + radius) / 2
        unit = scale_unit(statistics.count, terms.scale)
        self.protons, self.electrons = statistics.protons * unit, statistics.electrons * unit
        self.net = statistics.charge_sum * unit
        self.product = self.net[rows].unsqueeze(1) * self.net
        self.opposite = (
            self.protons[rows].unsqueeze(1) * self.electrons
            + self.electrons[rows].unsqueeze(1) * self.protons
        )

    def energy(self) -> Tensor:
        """`(rows, M)`, zero for a sample with itself."""
        energy = coulomb(self.product, self.opposite, self.mean_radius, self.distance)
        return energy.masked_fill(self.same, 0)

    def gradient(self) -> tuple[Tensor, ...]:
        """d(sum of energies)/d(own protons, electrons, charge sum, radius, nucleus)."""
        inverse = (1 / self.distance).masked_fill(self.same, 0)
        further = 1 / (self.distance + self.mean_radius)
        rho = self.mean_radius * further
        near = rho * inverse
        slope = -(self.product + self.opposite * rho * (2 - rho)) * inverse * inverse
        # hypot's own slope d/sqrt(d² + eps²) leads back to the distance of the nuclei
        nucleus = torch.ops.aten._cdist_backward(
            slope * (self.raw * inverse),
            self.own_nucleus.contiguous(),
            self.nucleus.contiguous(),
            float(self.norm),
            self.raw,
        )
        radius = (self.opposite * further * further).masked_fill(self.same, 0).sum(1) / 2
        return (
            near @ self.electrons,
            near @ self.protons,
            inverse @ self.net,
            radius,
            nucleus,
        )


def _differentiable_backward(statistics: Statistics, terms: Terms, grad: Tensor) -> Tensor:
    """The same gradient by autograd through the plain formulas, to be differentiated again."""
    loss = plain_loss(statistics, terms)
    [slopes] = torch.autograd.grad(loss, [statistics.table], grad, create_graph=True)
    return slopes


def plain_loss(statistics: Statistics, terms: Terms) -> Tensor:
    """The loss over all pairs by plain formulas, differentiable twice."""
    samples = len(statistics.count)
    first, second = torch.triu_indices(samples, samples, 1, device=statistics.table.device)
    loss = constraints(statistics, terms)
    if len(first):
        loss = loss + listed_energy(statistics, first, second, terms).mean()
    return loss
