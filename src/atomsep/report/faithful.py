"""How faithful maps are, over runs: rows for CSV files, means over seeds, and tables."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from torch import Tensor

from atomsep.experiments.faithfulness import CURVES, TRUTH, Judged
from atomsep.experiments.files import write_text
from atomsep.experiments.maps import RANDOM
from atomsep.experiments.registry import find_experiment
from atomsep.experiments.trained import TrainedRun

TINY = "-tiny"
"""What the names of experiments end with in their tiny form."""

HEADINGS = {
    "deletion": "deletion ↓",
    "insertion": "insertion ↑",
    "auc": "AUC ↑",
    "iou": "IoU ↑",
}
"""The columns of tables; the arrows say what a faithful map has."""


@dataclass(frozen=True)
class Row:
    """One measure of one map in one run, over its images; the fields are the columns of a CSV file.

    Attributes:
        experiment: name of the experiment.
        method: name of the method.
        weight: weight of its loss.
        settings: other settings of the run that are not the experiment's defaults.
        seed: seed of the run.
        map: name of the map.
        measure: "deletion", "insertion", "auc" or "iou".
        images: number of images.
        mean: mean over the images.
        half: half of its 95 % interval over the images.
        gain: mean difference to a random order of the tokens on the same image.
        gain_half: half of its 95 % interval over the images.
    """

    experiment: str
    method: str
    weight: float
    settings: str
    seed: int
    map: str
    measure: str
    images: int
    mean: float
    half: float
    gain: float
    gain_half: float


@dataclass(frozen=True)
class Point:
    """One point of a curve of one map in one run: mean and interval over the images."""

    experiment: str
    method: str
    weight: float
    settings: str
    seed: int
    map: str
    curve: str
    share: float
    mean: float
    half: float


def of_images(values: Tensor) -> tuple[float, float]:
    """Mean over images and half of its 95 % interval; images without a value do not count."""
    known = values[~values.isnan()].double()
    half = 1.96 * float(known.std()) / math.sqrt(len(known)) if len(known) > 1 else math.nan
    return round(float(known.mean()), 5), round(half, 5)


NOT_NAMED = ("weight", "method", "evaluate_every")
"""Settings with a place of their own, or without influence on the model."""


def changed_settings(run: TrainedRun) -> str:
    """The settings of a run that are not its experiment's defaults."""
    defaults = asdict(find_experiment(run.experiment).settings)
    found = asdict(run.settings)
    others = [name for name in found if found[name] != defaults.get(name)]
    return " ".join(f"{name}={found[name]}" for name in others if name not in NOT_NAMED)


def rows_of(run: TrainedRun, judged: Judged) -> tuple[list[Row], list[Point]]:
    """What was measured in a run, as rows."""
    name = run.experiment + (TINY if run.result["tiny"] else "")
    about = name, run.method, run.settings.weight or 0.0, changed_settings(run), run.seed
    rows = [
        Row(
            *(*about, name, measure, int((~values.isnan()).sum())),
            *(*of_images(values), *of_images(values - maps[RANDOM])),
        )
        for measure, maps in judged.values.items()
        for name, values in maps.items()
    ]
    points = [
        Point(*about, name, curve, round(share, 5), *of_images(values[:, step]))
        for curve, maps in judged.curves.items()
        for name, values in maps.items()
        for step, share in enumerate(judged.shares.tolist())
    ]
    return rows, points


def write_csv(path: Path, rows: Sequence[Row] | Sequence[Point]) -> None:
    """Write rows as a CSV file."""
    file = io.StringIO()
    writer = csv.DictWriter(file, [each.name for each in fields(rows[0])], lineterminator="\n")
    writer.writeheader()
    writer.writerows(asdict(row) for row in rows)
    write_text(path, file.getvalue())


def read_csv(path: Path, kind: type[Any]) -> list[Any]:
    """Read what `write_csv` wrote, as `Row` or `Point`."""
    types: dict[str, type] = {"int": int, "float": float, "str": str}
    with path.open(newline="", encoding="utf-8") as file:
        return [
            kind(**{each.name: types[str(each.type)](line[each.name]) for each in fields(kind)})
            for line in csv.DictReader(file)
        ]


@dataclass(frozen=True)
class Mean:
    """A number over seeds, or over the images of one seed, with half of its 95 % interval."""

    mean: float
    half: float

    def __str__(self) -> str:
        return f"{self.mean:.3f}" + ("" if math.isnan(self.half) else f" ± {self.half:.3f}")


def over_seeds(values: Sequence[float], halves: Sequence[float]) -> Mean:
    """The mean over seeds, with Student's interval; for one seed, the interval over its images.

    Example:
        >>> str(over_seeds([0.5], [0.02])), str(over_seeds([0.4, 0.5, 0.6], [0.02] * 3))
        ('0.500 ± 0.020', '0.500 ± 0.248')
    """
    if len(values) == 1:
        return Mean(values[0], halves[0])
    from scipy.stats import t

    quantile = float(t.ppf(0.975, len(values) - 1))
    return Mean(fmean(values), quantile * stdev(values) / math.sqrt(len(values)))


Condition = tuple[str, str, float, str]
"""Experiment, method, weight and other settings."""


def conditions(rows: Iterable[Row | Point]) -> list[Condition]:
    """The experiments, methods and settings that rows are of, in their order."""
    return list(dict.fromkeys(map(condition_of, rows)))


def condition_of(row: Row | Point) -> Condition:
    """What a row is of, whatever the seed."""
    return row.experiment, row.method, row.weight, row.settings


def of_condition(rows: Iterable[Any], condition: Condition) -> list[Any]:
    """The rows of an experiment with a method and settings."""
    return [row for row in rows if condition_of(row) == condition]


def table(rows: Sequence[Row], condition: Condition) -> list[list[str]]:
    """Maps by measure, with a heading: means over seeds, bold where better than a random order."""
    own = of_condition(rows, condition)
    measures = [name for name in (*CURVES, *TRUTH) if any(row.measure == name for row in own)]
    lines = [["map", *(HEADINGS[name] for name in measures)]]
    for name in dict.fromkeys(row.map for row in own):
        cells = [_cell([r for r in own if (r.map, r.measure) == (name, m)], m) for m in measures]
        lines.append([name, *cells])
    return lines


def _cell(rows: Sequence[Row], measure: str) -> str:
    if not rows:
        return ""
    shown = over_seeds([row.mean for row in rows], [row.half for row in rows])
    gain = over_seeds([row.gain for row in rows], [row.gain_half for row in rows])
    better = -gain.mean if measure == "deletion" else gain.mean
    return f"**{shown}**" if better > gain.half else str(shown)


def markdown(lines: Sequence[Sequence[str]]) -> str:
    """A table in Markdown.

    Example:
        >>> print(markdown([["map", "AUC"], ["a", "0.5"]]))
        | map | AUC |
        |---|---|
        | a | 0.5 |
    """
    head, *body = ["| " + " | ".join(line) + " |" for line in lines]
    return "\n".join([head, "|" + "---|" * len(lines[0]), *body])


def title_of(rows: Sequence[Any], condition: Condition, titles: Mapping[str, str]) -> str:
    """Names an experiment, its method and seeds.

    Args:
        rows: all rows.
        condition: which of them.
        titles: the experiments' names in tables.
    """
    experiment, method, weight, _ = condition
    seeds = sorted({row.seed for row in of_condition(rows, condition)})
    count = "1 seed" if len(seeds) == 1 else f"{len(seeds)} seeds"
    how = "cross-entropy alone" if method == "plain" else f"{method}, weight {weight:g}"
    whole = experiment.removesuffix(TINY)
    name = titles.get(whole, whole) + (" (tiny)" if whole != experiment else "")
    return f"{name}, {how}, {count}"
