"""The figure of faithfulness: deletion and insertion with bands, and the truth."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from atomsep.experiments.faithfulness import CURVES
from atomsep.experiments.maps import ABSOLUTE, CENTRE, NEGATIVE, POSITIVE, RANDOM, UNTRAINED
from atomsep.importance.colours import INK, css
from atomsep.report.faithful import (
    Condition,
    Point,
    Row,
    conditions,
    of_condition,
    over_seeds,
    title_of,
)
from atomsep.report.style import BLUE, FAINT, GREEN, GREY, PAGE, STYLE

COLOURS = {
    POSITIVE: css(1.0),
    NEGATIVE: css(-1.0),
    ABSOLUTE: INK,
    UNTRAINED: "#8a5a2b",
    RANDOM: GREY,
    "gradient x input": "#c9a227",
    "integrated gradients": GREEN,
    "Grad-CAM, last layer": "#8e4585",
}
"""The maps that the curves show."""

LINES = {RANDOM: (0, (1, 1)), UNTRAINED: (0, (4, 2))}
"""Dotted and dashed: what is no map of the model."""


def faithful_figure(
    rows: Sequence[Row], points: Sequence[Point], titles: Mapping[str, str] | None = None
) -> Figure:
    """Deletion, insertion and, where the truth is known, the AUC of every map, a row per method.

    Args:
        rows: what was measured.
        points: the curves.
        titles: the experiments' names.
    """
    found = conditions(rows)
    truth = any(row.measure == "auc" for row in rows)
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(PAGE, 2.1 * len(found) + 0.5), layout="constrained")
        grid = figure.subplots(len(found), 3 if truth else 2, squeeze=False, sharex="col")
        for axes, condition in zip(grid, found, strict=True):
            axes[1].sharey(axes[0])
            for place, curve in zip(axes, CURVES, strict=False):
                draw_curves(place, points, condition, curve)
            axes[0].set_ylabel("probability of the class")
            if truth:
                draw_truth(axes[2], rows, condition)
            axes[0].set_title(title_of(rows, condition, titles or {}))
        for place, curve in zip(grid[-1], CURVES, strict=False):
            done = "removed" if curve == "deletion" else "shown"
            place.set_xlabel(f"{curve}: tokens {done}, %")
        lines = [line for line in grid[0, 0].lines if line.get_label()[0] != "_"]
        figure.legend(
            lines, [line.get_label() for line in lines], loc="outside lower center", ncols=4
        )
    return figure


def draw_curves(axes: Axes, points: Sequence[Point], condition: Condition, curve: str) -> None:
    """The mean curve of each map, with bars of its 95 % interval at some points.

    Bars of different maps stand beside each other, where bands would cover each other.
    """
    own = [point for point in of_condition(points, condition) if point.curve == curve]
    for number, (name, colour) in enumerate(COLOURS.items()):
        shares = sorted({point.share for point in own if point.map == name})
        means = []
        for share in shares:
            here = [point for point in own if (point.map, point.share) == (name, share)]
            means.append(over_seeds([p.mean for p in here], [p.half for p in here]))
        if means:
            x, y = [100 * share for share in shares], [each.mean for each in means]
            axes.plot(x, y, color=colour, lw=1.1, ls=LINES.get(name, "-"), label=name)
            # The ends, which all maps share, have none.
            barred = range(1 + number % max(1, len(x) - 2), len(x) - 1, len(COLOURS))
            halves = [means[place].half for place in barred]
            at = [x[place] for place in barred], [y[place] for place in barred]
            axes.errorbar(*at, halves, fmt="none", ecolor=colour, elinewidth=0.8, capsize=1.5)
    axes.set_xlim(0, 100)


def draw_truth(axes: Axes, rows: Sequence[Row], condition: Condition) -> None:
    """The AUC of each map against the segmentation, a dot per seed; a bar for the mean."""
    own = [row for row in of_condition(rows, condition) if row.measure == "auc"]
    names = list(dict.fromkeys(row.map for row in own))
    for place, name in enumerate(names):
        values = [row.mean for row in own if row.map == name]
        colour = COLOURS.get(name, BLUE if name != CENTRE else INK)
        axes.plot(values, [place] * len(values), "o", ms=3, color=colour, mew=0, alpha=0.8)
        axes.plot([sum(values) / len(values)] * 2, [place - 0.3, place + 0.3], color=colour, lw=1.2)
    axes.axvline(0.5, color=FAINT, lw=0.8, zorder=0)
    axes.set_yticks(range(len(names)), names, fontsize=6)
    axes.invert_yaxis()
    axes.set_xlabel("AUC against the true outline")
