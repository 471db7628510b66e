"""The statistics and the loss by autograd through the plain formulas of `atomsep.functional`.

Slower than the closed forms, but differentiable any number of times and in any mode: second
derivatives, `torch.func`, forward-mode AD and listed pairs go this way.
"""

from __future__ import annotations

import torch
from torch import Tensor

from atomsep import functional as F
from atomsep.core.statistics import Statistics, Terms, Tokens


def read_atoms(tokens: Tokens) -> F.Atoms:
    """The atoms of a tensor of tokens."""
    source, scores, mask, _, (layout, feature, norm) = tokens
    latent = layout.tokens(source)
    if scores is None:
        return F.form_atoms(latent, mask, norm=norm, charge=feature or 0)
    return F.form_atoms(latent, mask, norm=norm, charge=lambda _: scores, position=lambda p: p)


def table_of(atoms: F.Atoms) -> Tensor:
    """The table of statistics of some atoms."""
    return Statistics.pack(
        *(atoms.protons, atoms.electrons, atoms.charge_sum, atoms.charge_square),
        *(atoms.radius, atoms.nucleus),
    )


def pair_loss(
    statistics: Statistics, terms: Terms, pairs: tuple[Tensor, Tensor] | None = None
) -> Tensor:
    """The loss of a batch, a scalar.

    Args:
        statistics: of the samples.
        terms: norm, softening, scale and the weights of energy and constraints.
        pairs: indices of the first and second samples of the pairs; None for all pairs.
    """
    if pairs is None:
        samples = len(statistics.count)
        first, second = torch.triu_indices(samples, samples, 1, device=statistics.table.device)
    else:
        first, second = pairs
    if not len(first):  # a single sample: no energy, but still a part of the graph
        return 0 * statistics.nucleus.sum() + constraints(statistics, terms)
    if not terms.energy:  # not multiplied by 0, which leaves NaN of an infinite energy
        return constraints(statistics, terms)
    energy = listed_energy(statistics, first, second, terms).mean()
    return terms.energy * energy + constraints(statistics, terms)


def constraints(statistics: F.AtomStatistics, terms: Terms) -> Tensor:
    """Weighted mean over samples of neutrality and occupancy."""
    return constraint_terms(statistics, terms).mean()


def constraint_terms(statistics: F.AtomStatistics, terms: Terms) -> Tensor:
    """Neutrality and occupancy of each sample, weighted, `(M,)`."""
    neutrality = F.neutrality(statistics, terms.scale)
    return terms.neutrality * neutrality + terms.occupancy * F.occupancy(statistics, terms.scale)


def listed_energy(
    statistics: F.AtomStatistics, first: Tensor, second: Tensor, terms: Terms
) -> Tensor:
    """Energy of the pairs (first[i], second[i])."""
    unit = F.scale_unit(statistics.count, terms.scale)
    net = statistics.charge_sum * unit
    protons, electrons = statistics.protons * unit, statistics.electrons * unit
    difference = statistics.nucleus[first] - statistics.nucleus[second]
    if terms.norm == 2:
        distance = (difference.square().sum(-1) + terms.softening**2).sqrt()
    else:
        distance = F.soften(difference.abs().sum(-1, keepdim=True), terms.softening).squeeze(-1)
    opposite = protons[first] * electrons[second] + electrons[first] * protons[second]
    mean_radius = (statistics.radius[first] + statistics.radius[second]) / 2
    return F.coulomb(net[first] * net[second], opposite, mean_radius, distance)
