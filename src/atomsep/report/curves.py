"""Training curves: what runs recorded over their steps, as a mean and a range over seeds."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

NOT_CURVES = ("epoch", "step", "seconds")

MOST_POINTS = 200
"""Points that a line is drawn with; of more, every second, third ... is left out."""


class Point(NamedTuple):
    """A quantity after some steps: mean, least and largest over the seeds that recorded it."""

    step: int
    mean: float
    low: float
    high: float


Curves = Mapping[str, list[Point]]
"""By the quantity's name."""


def read_lines(folder: Path) -> list[dict[str, Any]]:
    """The lines of a run's `metrics.jsonl`; none if it has no such file, or a damaged one."""
    try:
        text = (folder / "metrics.jsonl").read_text(encoding="utf-8")
        lines = [json.loads(line) for line in text.splitlines()]
    except (OSError, ValueError, RecursionError):
        return []
    return [line for line in lines if isinstance(line, dict) and type(line.get("step")) is int]


def average_curves(runs: Iterable[Iterable[Mapping[str, Any]]]) -> dict[str, list[Point]]:
    """Mean and range of every quantity over runs, step by step.

    Args:
        runs: the lines of metrics of each seed.

    Example:
        >>> seeds = [{"step": 5, "loss": 2.0, "metrics": {"top1": 0.5}}], [{"step": 5, "loss": 4.0}]
        >>> average_curves(seeds)["loss"]
        [Point(step=5, mean=3.0, low=2.0, high=4.0)]
    """
    metrics: dict[str, dict[int, list[float]]] = {}
    others: dict[str, dict[int, list[float]]] = {}
    # Backwards, because the first line of a run may have only some of the quantities.
    for line in (line for lines in runs for line in reversed([*lines])):
        measured = line.get("metrics")
        rest = {name: value for name, value in line.items() if name not in NOT_CURVES}
        for found, values in ((metrics, measured), (others, rest)):
            for name, value in values.items() if isinstance(values, Mapping) else ():
                if type(value) in (int, float) and math.isfinite(value):
                    found.setdefault(name, {}).setdefault(line["step"], []).append(float(value))
    return {name: _points(steps) for name, steps in {**metrics, **others}.items()}


def _points(steps: Mapping[int, list[float]]) -> list[Point]:
    points = [Point(s, fmean(steps[s]), min(steps[s]), max(steps[s])) for s in sorted(steps)]
    stride = math.ceil(len(points) / MOST_POINTS)
    return points[::-1][::stride][::-1]  # the last one stays
