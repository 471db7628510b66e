"""The statistics of a layer's last forward as numbers."""

from __future__ import annotations

import torch
from torch import Tensor

from atomsep.core.plain.pairs import mean_distance, mean_energy
from atomsep.core.statistics import Statistics, Terms
from atomsep.functional import neutrality, occupancy, widen


@torch.no_grad()
def read_stats(numbers: Statistics, charge: Tensor, terms: Terms) -> dict[str, float]:
    """The parts of the loss and what the charges are like; see `stats` of the attachment.

    Args:
        numbers: the statistics of the samples, detached; of those of all processes, if they were
            exchanged. The share of the positions needs charges and mask, which never are.
        charge: the charges `(M, N)`, 0 on padding.
        terms: what the loss consists of.
    """
    own, numbers = numbers, numbers.of_all()
    parts = {
        "energy": mean_energy(numbers, terms),
        "neutrality": neutrality(numbers, terms.scale).mean(),
        "occupancy": occupancy(numbers, terms.scale).mean(),
        "distance": mean_distance(numbers, terms),
        "radius": numbers.radius.mean(),
        "protons": (numbers.protons / numbers.count).mean(),
        "electrons": (numbers.electrons / numbers.count).mean(),
        "charge_square": (numbers.charge_square / numbers.count).mean(),
        "position_share": position_share(charge, own.mask).to(numbers.table.dtype),
    }
    values = dict(zip(parts, torch.stack(list(parts.values())).tolist(), strict=True))
    values["neutrons"] = 1 - values["protons"] - values["electrons"]
    return values


def position_share(charge: Tensor, mask: Tensor | None = None) -> Tensor:
    r"""Share of the charges' variance that the position alone explains.

    The adjusted $R^2$ of the charges on their position: with T real tokens at L positions, and the
    sums of squares around the mean of all charges and around the mean of each position,

    $$1 - \frac{SS_{within}}{T - L} \Big/ \frac{SS_{total}}{T - 1}$$

    It is 1 if all samples have the same map and near 0 if the position tells nothing, whatever the
    size of the charges and of the batch. As an unbiased estimate of 0 it may then be slightly
    negative; cut off there, the mean over small batches would be too large. Without two samples, or
    without variance, it is NaN.

    Args:
        charge: the charges `(M, N)`.
        mask: True on real tokens, `(M, N)`.

    Example:
        >>> maps = torch.tensor([[0.1, 0.9, -0.5], [0.1, 0.9, -0.5]])
        >>> print(f"{position_share(maps):.2f}")
        1.00
    """
    wide = widen(charge)
    real = torch.ones_like(wide) if mask is None else mask.to(wide.dtype)
    per_position = real.sum(0)
    tokens, positions = real.sum(), (per_position > 0).sum()
    mean = (wide * real).sum() / tokens
    of_position = (wide * real).sum(0) / per_position.clamp(min=1)
    total = ((wide - mean).square() * real).sum() / (tokens - 1)
    within = ((wide - of_position).square() * real).sum() / (tokens - positions)
    return 1 - within / total
