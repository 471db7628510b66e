"""The distribution of atomic distances at the start of the training, half way and at its end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from atomsep.experiments.distances import MOMENTS
from atomsep.report.style import COLUMN, PAGE, colour_of, label_of, on_one_line

BINS = 60
"""Steps of a distribution."""

LOOKS: dict[str, dict[str, Any]] = {
    "start": {"ls": (0, (1, 1)), "alpha": 0.6},
    "half": {"ls": (0, (4, 2)), "alpha": 0.8},
    "end": {"ls": "-", "alpha": 1.0},
}


def distances_over_training(
    runs: Mapping[str, Mapping[str, Any]], plain: str = "Cross-Entropy"
) -> Figure:
    """How far apart samples are, in one panel per method; all panels have the same axes.

    Args:
        runs: by method, then by moment ("start", "half", "end"): distances `(n,)`, or
            their quantiles.
        plain: what the experiment calls the method "plain".
    """
    width = COLUMN if len(runs) == 1 else PAGE
    figure = Figure(figsize=(width, 2.1), layout="constrained")
    panels = figure.subplots(1, len(runs), sharex=True, sharey=True, squeeze=False)[0]
    # A few far pairs must not press the others together.
    most = max(np.quantile(each, 0.995) for moments in runs.values() for each in moments.values())
    edges = np.linspace(0, float(most) or 1.0, BINS + 1)
    for axes, (method, moments) in zip(panels, runs.items(), strict=True):
        for moment in MOMENTS:
            if moment in moments:
                shares = 100 * np.histogram(moments[moment], edges)[0] / len(moments[moment])
                look = {"color": colour_of(method), "lw": 1.1, **LOOKS[moment]}
                axes.stairs(shares, edges, label=moment, **look)
        axes.set_title(on_one_line(label_of(method, plain)))
        axes.set_xlim(0, edges[-1])
    panels[0].set_ylabel("pairs of samples, %")
    panels[-1].legend(title="moment of training", title_fontsize=6.5)
    figure.supxlabel("atomic distance, in units of the latent", fontsize=7)
    return figure
