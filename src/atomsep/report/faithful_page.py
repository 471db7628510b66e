"""The results of `atomsep faithful` as files: CSV, one figure, and tables with captions."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from atomsep.experiments.files import replacing, write_text, writing
from atomsep.experiments.registry import EXPERIMENTS
from atomsep.report.faithful import (
    Point,
    Row,
    conditions,
    markdown,
    of_condition,
    table,
    title_of,
    write_csv,
)
from atomsep.report.faithful_figure import faithful_figure

ROWS, POINTS, PAGE, FIGURE = "faithful.csv", "faithful_curves.csv", "faithful.md", "faithful"

CAPTION = (
    "Deletion: mean probability of the predicted class while tokens are replaced by the blurred "
    "image, the highest scores first; a faithful map falls fast. Insertion: the same tokens are "
    "brought back; a faithful map rises fast. AUC: how well the map tells the pixels of the object "
    "from the background, one dot per seed. Bars on the curves are 95 % intervals over seeds, or "
    "over images for one seed. Left out of the curves: the sign of the charge, the centre of the "
    "image and Grad-CAM at the charges' layer; the tables have all maps."
)


def titles() -> dict[str, str]:
    """The experiments' names in tables."""
    return {name: experiment.title for name, experiment in EXPERIMENTS.items()}


def tables(rows: Sequence[Row]) -> str:
    """A table per experiment and method, in Markdown."""
    parts = []
    for condition in conditions(rows):
        images = max(row.images for row in of_condition(rows, condition))
        settings = f"; `{condition[-1]}`" if condition[-1] else ""
        title = title_of(rows, condition, titles())
        head = f"**{title}** ({images} images per run{settings})"
        parts.append(f"{head}\n\n{markdown(table(rows, condition))}\n")
    return "\n".join(parts)


def write_results(
    out: Path, rows: Sequence[Row], points: Sequence[Point]
) -> list[tuple[str, list[list[str]]]]:
    """Write all files; returns the tables: titles, and lines of which the first is the heading."""
    with writing(out):
        out.mkdir(parents=True, exist_ok=True)
    write_csv(out / ROWS, rows)
    write_csv(out / POINTS, points)
    for ending in ("png", "pdf"):
        draw(out / f"{FIGURE}.{ending}", rows, points)
    text = f"# Are the maps faithful?\n\n{tables(rows)}\n![]({FIGURE}.png)\n\n{CAPTION}\n"
    write_text(out / PAGE, text)
    return [(title_of(rows, each, titles()), table(rows, each)) for each in conditions(rows)]


def draw(path: Path, rows: Sequence[Row], points: Sequence[Point]) -> None:
    """Write the figure, in the format that the name ends with."""
    figure = faithful_figure(rows, points, titles())
    ending = path.suffix[1:]
    metadata = {"pdf": {"CreationDate": None}, "svg": {"Date": None}}.get(ending)
    with writing(path), replacing(path) as part:
        figure.savefig(part, format=ending, metadata=metadata)
