"""The statistics of a layer's last forward as numbers."""

from __future__ import annotations

import torch
from torch import Tensor

from atomsep.core.plain.pairs import mean_distance, mean_energy
from atomsep.core.statistics import Statistics, Terms
from atomsep.functional import neutrality, occupancy


@torch.no_grad()
def read_stats(numbers: Statistics, charge: Tensor, terms: Terms) -> dict[str, float]:
    """The parts of the loss and what the charges are like; see `stats` of the attachment.

    Args:
        numbers: the statistics of the samples, detached.
        charge: the charges `(M, N)`, 0 on padding.
        terms: what the loss consists of.
    """
    parts = {
        "energy": mean_energy(numbers, terms),
        "neutrality": neutrality(numbers, terms.scale).mean(),
        "occupancy": occupancy(numbers, terms.scale).mean(),
        "distance": mean_distance(numbers, terms),
        "radius": numbers.radius.mean(),
        "protons": (numbers.protons / numbers.count).mean(),
        "electrons": (numbers.electrons / numbers.count).mean(),
    }
    values = dict(zip(parts, torch.stack(list(parts.values())).tolist(), strict=True))
    values["neutrons"] = 1 - values["protons"] - values["electrons"]
    return values
