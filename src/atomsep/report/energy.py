"""The energy of a pair of samples against the distance of their nuclei."""

from __future__ import annotations

import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

from atomsep.core.statistics import Statistics
from atomsep.functional import equilibrium_distance, pair_energy
from atomsep.importance.colours import INK
from atomsep.report.style import COLUMN

SIMILARITIES = {0.5: "#c3b5dd", 1.0: "#a58fcb", 1.5: "#7d62b4", 2.0: "#5b3f98", 4.0: "#33206b"}
"""Values of k whose energy is drawn, and their colours."""


def energy_by_distance() -> Figure:
    """The energy of a pair for several k, with the distance d* of Theorem 2 marked."""
    distances = torch.logspace(-1.3, 1.7, 400, dtype=torch.float64)
    figure = Figure(figsize=(COLUMN, 2.4), layout="constrained")
    axes = figure.subplots()
    for k, colour in SIMILARITIES.items():
        pairs, unit = pair_at(k, distances)
        energy = pair_energy(pairs, softening=0, scale="sum")[0, 1:] / unit
        axes.plot(distances.numpy(), energy.numpy(), color=colour, lw=1.2, label=f"k = {k:g}")
        best = equilibrium_distance(pairs)[0, 1:2]
        if best.isfinite():
            pairs, unit = pair_at(k, best)
            lowest = pair_energy(pairs, softening=0, scale="sum")[0, 1] / unit
            axes.plot(best, lowest.view(1), "o", ms=4, color=colour, mec="white", zorder=4)
    axes.plot([], [], "o", ms=4, color=INK, label="d*, least energy")
    axes.axhline(0, color=INK, lw=0.6)
    axes.set(xscale="log", xlim=(0.05, 50), ylim=(-1.6, 3))
    axes.set_xticks([0.1, 1, 10], ["0.1", "1", "10"])
    axes.set(xlabel="atomic distance d, in mean radii", ylabel="energy, in c / mean radius")
    axes.legend(loc="upper right", title="k = |c*| / c", title_fontsize=6.5)
    return figure


def pair_at(k: float, distances: Tensor) -> tuple[Statistics, Tensor]:
    """One atom at the origin, and its partner at each distance; all radii are 1.

    The first atom has P = 1 and G = g. For k > 1 its partner has the two swapped, for k <= 1 the
    same, so that k = (1 + g²)/(2g) or its inverse.

    Returns:
        The atoms, with the first one in front, and c, the charge products of like sign.
    """
    steep = max(k, 1 / k)
    minor = steep - (steep**2 - 1) ** 0.5
    ones = torch.ones(len(distances) + 1, dtype=distances.dtype)
    major, lesser = ones.clone(), ones * minor
    if k > 1:
        major[1:], lesser[1:] = minor, 1
    position = nn.functional.pad(distances, (1, 0)).unsqueeze(1)
    net, square = major - lesser, major**2 + lesser**2
    pairs = Statistics(Statistics.pack(major, lesser, net, square, ones, position), 2 * ones)
    return pairs, major[0] * major[1] + lesser[0] * lesser[1]
