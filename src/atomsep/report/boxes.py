"""A metric by method: a box beside the seeds."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure

from atomsep.importance.colours import INK
from atomsep.report.groups import Row
from atomsep.report.style import COLUMN, FAINT, PAGE, colour_of, label_of


def boxes_by_method(rows: Sequence[Row], label: str, best: float | None = None) -> Figure:
    """A metric of every method: a box beside the seeds, and a faint line per seed.

    Args:
        rows: the methods.
        label: the metric's name, with its unit.
        best: the best possible value, if it is known.
    """
    width = COLUMN if len(rows) <= 5 else PAGE
    figure = Figure(figsize=(width, 2.4), layout="constrained")
    axes = figure.subplots()
    for seed in sorted({seed for row in rows for seed in row.values}):
        line = [row.values.get(seed, float("nan")) for row in rows]
        axes.plot(range(len(line)), line, color=FAINT, lw=0.7, zorder=1)
    for place, row in enumerate(rows):
        colour, column = colour_of(row.method), [*row.values.values()]
        axes.scatter(
            [place] * len(column), column, s=9, color=colour, lw=0, zorder=3, clip_on=False
        )
        axes.boxplot(
            column,
            positions=[place + 0.28],
            widths=0.2,
            showfliers=False,
            patch_artist=True,
            boxprops={"facecolor": colour, "alpha": 0.35, "edgecolor": colour},
            medianprops={"color": colour, "lw": 1.4, "clip_on": False},
            whiskerprops={"color": colour},
            capprops={"color": colour},
        )
    if best is not None:
        axes.axhline(best, color=INK, lw=0.7, ls=(0, (5, 3)))
        text = f"best possible: {best:.1f} %"
        axes.annotate(text, (-0.4, best), (0, 2), textcoords="offset points", fontsize=6.5)
    axes.set_xticks(range(len(rows)), tick_labels(rows))
    axes.ticklabel_format(axis="y", useOffset=False)
    axes.set(xlim=(-0.5, len(rows) - 0.3), ymargin=0.12, ylabel=label)
    if "%" in label and axes.dataLim.y1 <= 100:
        axes.set_ylim(top=min(100, axes.get_ylim()[1]))
    return figure


def tick_labels(rows: Sequence[Row]) -> list[str]:
    """The names of the rows; with weight and options where a method is there more than once."""
    methods = [row.method for row in rows]
    return [
        label_of(row.method, row.title)
        if methods.count(row.method) == 1
        else row.title.replace(" (", "\n(")
        for row in rows
    ]
