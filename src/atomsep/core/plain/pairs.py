r"""From per-sample statistics to the loss in plain PyTorch: all pairs, in memory that grows with M.

The energy is symmetric, so the gradient of the sum over all ordered pairs with respect to one
sample is twice that of its own row with the others held fixed. Rows are computed in blocks:

    E = (S_A S_B + Y rho) / d      Y = P_A G_B + G_A P_B,  rho = r̃ / (d + r̃)
    dE/dd = -(S_A S_B + Y rho (2 - rho)) / d²      dE/dr̃ = Y / (d + r̃)²
    dE/dS_A = S_B / d      dE/dP_A = G_B rho / d      dE/dG_A = P_B rho / d
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from atomsep.core.plain.precision import full_precision
from atomsep.core.reference import constraint_terms, constraints
from atomsep.core.statistics import Statistics, Terms
from atomsep.functional import OCCUPANCY_TARGET, coulomb, nuclear_distance, scale_unit, soften


@full_precision
def pair_loss(
    table: Tensor, count: Tensor, terms: Terms, weight: float, gradient: bool
) -> tuple[Tensor, Tensor | None]:
    """See `atomsep.core.backend.Backend`."""
    statistics = Statistics(table, count)
    if not terms.energy:
        loss = weight * constraints(statistics, terms)
        return loss, _gradient(statistics, terms, [], weight, len(count)) if gradient else None
    energies, slopes = [], []
    for rows in row_blocks(statistics, terms):
        energies.append(rows.energy().sum())
        if gradient:
            slopes.append(rows.gradient())
    energy = terms.energy * _mean(statistics, energies)
    loss = weight * (energy + constraints(statistics, terms))
    return loss, _gradient(statistics, terms, slopes, weight, len(count)) if gradient else None


@full_precision
def pair_loss_of_rows(
    table: Tensor,
    count: Tensor,
    terms: Terms,
    weight: float,
    own: slice,
    absent: Tensor,
    samples: Tensor,
) -> tuple[Tensor, Tensor]:
    """See `atomsep.core.backend.RowsBackend`."""
    statistics, mine = Statistics(table, count), Statistics(table[own], count[own])
    loss = (constraint_terms(mine, terms) / samples).sum()
    energies, slopes = [loss.new_zeros(())], []
    if terms.energy:
        for rows in row_blocks(statistics, terms, own, absent):
            energies.append(rows.energy().sum())
            slopes.append(rows.gradient())
    energy = torch.stack(energies).sum() / (samples * (samples - 1)).clamp_min(1)
    gradient = _gradient(mine, terms, slopes, weight, samples)
    return weight * (terms.energy * energy + loss), gradient


def _gradient(
    statistics: Statistics,
    terms: Terms,
    slopes: list[tuple[Tensor, ...]],
    weight: float,
    samples: int | Tensor,
) -> Tensor:
    """The gradient of the table, from the slopes of the energies, if any, and the constraints."""
    count = statistics.count
    unit = scale_unit(count, terms.scale)
    protons = electrons = net = radius = torch.zeros_like(count)
    nucleus = torch.zeros_like(statistics.nucleus)
    if slopes:
        protons, electrons, net, radius, nucleus = (
            torch.cat(part) for part in zip(*slopes, strict=True)
        )
    pairs = samples * (samples - 1)
    pairs = pairs.clamp_min(1) if isinstance(pairs, Tensor) else max(1, pairs)
    pair_weight = 2 * weight * terms.energy / pairs
    sample_weight = 2 * weight / samples
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


def mean_energy(statistics: Statistics, terms: Terms) -> Tensor:
    """Mean energy over all pairs; 0 for a single sample. Not differentiable."""
    blocks = row_blocks(statistics, terms, slopes=False)
    return _mean(statistics, (rows.energy().sum() for rows in blocks))


def mean_distance(statistics: Statistics, terms: Terms) -> Tensor:
    """Mean distance of nuclei over all pairs, unsoftened; 0 for a single sample."""
    blocks = row_blocks(statistics, terms, slopes=False)
    return _mean(statistics, (rows.raw.sum() for rows in blocks))


def _mean(statistics: Statistics, sums: Iterable[Tensor]) -> Tensor:
    """Mean over all pairs, from sums over blocks of rows."""
    samples = len(statistics.count)
    return torch.stack(list(sums)).sum() / max(1, samples * (samples - 1))


BLOCK = 1 << 22
"""Numbers per block: one per pair, on a GPU one per feature of a pair."""


def row_blocks(
    statistics: Statistics,
    terms: Terms,
    own: slice | None = None,
    absent: Tensor | None = None,
    *,
    slopes: bool = True,
) -> Iterator[_Rows]:
    """Blocks of rows of the matrix of pairs: of all, or of some samples with all that are there.

    Without `slopes` nobody asks them for a gradient.
    """
    samples, features = statistics.nucleus.shape
    first, last = (0, samples) if own is None else (own.start, own.stop)
    # On a GPU the gradient of torch.cdist takes memory for all features of all pairs.
    wide = slopes and statistics.nucleus.device.type != "cpu"
    each = samples * features if wide else samples
    step = max(1, BLOCK // max(each, 1))
    for start in range(first, last, step):
        yield _Rows(statistics, terms, slice(start, min(start + step, last)), absent)


class _Rows:
    """The pairs of some samples with all others, charges in the loss's scale."""

    def __init__(
        self, statistics: Statistics, terms: Terms, rows: slice, absent: Tensor | None = None
    ) -> None:
        self.norm = terms.norm
        self.nucleus, self.own_nucleus = statistics.nucleus, statistics.nucleus[rows]
        self.raw = nuclear_distance(self.own_nucleus, self.nucleus, terms.norm)
        index = torch.arange(len(self.nucleus), device=self.nucleus.device)
        self.same = index[rows].unsqueeze(1) == index  # left out
        if absent is not None:
            self.same = self.same | absent
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
