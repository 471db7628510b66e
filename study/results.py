"""Finished runs in compact form: a file per task, with a line per run."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np

from atomsep.experiments.distances import MOMENTS, NAME
from atomsep.experiments.runs import Run
from study.questions import Arm, Planned
from study.tasks import TASKS

FOLDER = Path(__file__).parent / "results"


@dataclass(frozen=True)
class Row:
    """A finished run.

    Attributes:
        phase: see `study.questions`.
        method: its method.
        strength: its strength.
        options: further assignments of its arm.
        tuned: value of the task's tuned setting.
        seed: its seed.
        settings: what differs from the experiment's defaults.
        metrics: its metrics.
        broken_down: when and how it broke down, or None.
        seconds: how long it took, beside others on the same device.
        machine: where.
        versions: of torch and of this project.
        shares: the gradient's share at the start and at the end, if it was measured.
        distances: median distance of samples at the layer at the start, half way and at the end,
            and the quartiles at the end; empty for runs that have none.
        commit: the commit of this project that trained it, with "+" if it was changed; not known
            of older runs.
    """

    phase: str
    method: str
    strength: float
    options: list[str]
    tuned: float
    seed: int
    settings: list[str]
    metrics: dict[str, float]
    broken_down: Any
    seconds: float
    machine: str
    versions: dict[str, str]
    shares: list[float]
    distances: list[float] = field(default_factory=list)
    commit: str | None = None

    @property
    def arm(self) -> Arm:
        """Its arm."""
        return Arm(self.method, self.strength, tuple(self.options))


def file_of(task: str) -> Path:
    """Where the runs of a task are."""
    return FOLDER / f"{task}.jsonl"


def read(task: str, phase: str | None = None) -> list[Row]:
    """The collected runs of a task, of one phase or of all."""
    path = file_of(task)
    if not path.exists():
        return []
    rows = [Row(**json.loads(line)) for line in path.read_text().splitlines()]
    return [row for row in rows if phase in (None, row.phase)]


def choose(task: str, *, partly: bool = True) -> float | None:
    """The value of the tuned setting with the best mean metric; None if none was tried.

    A value with a run that has no finite metric is out. A single value is not tuned.

    Args:
        task: its name.
        partly: whether to choose while some runs are missing.
    """
    values = TASKS[task].tuned[1]
    if len(values) == 1:
        return values[0]
    found: dict[float, list[float]] = {}
    for row in read(task, "tuning"):
        found.setdefault(row.tuned, []).append(_gain(task, row))
    if not partly and sum(map(len, found.values())) < len(values) * TASKS[task].tries:
        return None
    return max(found, key=lambda value: mean(found[value]), default=None)


def best_strength(task: str, arm: Arm) -> float | None:
    """The strength of an arm's method with the best mean metric in the trials."""
    found: dict[float, list[float]] = {}
    for row in read(task, "trials"):
        if (row.method, tuple(row.options)) == (arm.method, arm.options):
            found.setdefault(row.strength, []).append(_gain(task, row))
    return max(found, key=lambda value: mean(found[value]), default=None)


def with_strengths(task: str, arms: Iterable[Arm]) -> list[Arm]:
    """Arms with the strengths that were best in the trials; those without trials are left out."""
    known = (
        arm if arm.strength is not None else arm._replace(strength=best_strength(task, arm))
        for arm in arms
    )
    return [arm for arm in known if arm.strength is not None]


def _gain(task: str, row: Row) -> float:
    metric = row.metrics[TASKS[task].metrics[0]]
    return TASKS[task].sign * metric if math.isfinite(metric) else -math.inf


def collect(task: str, planned: Iterable[Planned], out: Path) -> int:
    """Add finished runs of a task to those collected; returns the number of all."""
    rows = {_identity(row): row for row in read(task)}
    for each in planned:
        if row := _row(each, out):
            rows[_identity(row)] = row
    if rows:
        path = file_of(task)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps(vars(row)) + "\n" for row in rows.values()))
    return len(rows)


def uncollected(planned: Iterable[Planned]) -> Iterator[Planned]:
    """Those of the planned runs that have not been collected."""
    planned = list(planned)
    have = {task: set(map(_identity, read(task))) for task in {each.task for each in planned}}
    for each in planned:
        if (each.phase, each.arm, each.tuned, each.key.seed) not in have[each.task]:
            yield each


def _identity(row: Row) -> tuple[Any, ...]:
    return row.phase, row.arm, row.tuned, row.seed


def _row(each: Planned, out: Path) -> Row | None:
    result = Run(each.key.folder(out)).read_result()
    if result is None:
        return None
    machine = result["machine"]
    ends = result.get("strength_at_start") or {}, result["last_epoch"]
    shares = [end["gradient_share"] for end in ends if "gradient_share" in end]
    assert each.arm.strength is not None
    return Row(
        phase=each.phase,
        method=each.arm.method,
        strength=each.arm.strength,
        options=list(each.arm.options),
        tuned=each.tuned,
        seed=each.key.seed,
        settings=list(each.settings),
        metrics={
            name: result["metrics"][name]
            for name in TASKS[each.task].metrics
            if name in result["metrics"]  # held-out samples are not corrupted
        },
        broken_down=result.get("broken_down"),
        seconds=round(result["seconds"], 1),
        machine=machine.get("gpu") or machine["processor"],
        versions={name: result["versions"][name] for name in ("torch", "atomsep")},
        shares=[float(f"{share:.3g}") for share in shares],
        distances=_distances(each.key.folder(out) / NAME),
        commit=result["commit"],
    )


def _distances(path: Path) -> list[float]:
    if not path.exists():
        return []
    with np.load(path) as moments:
        medians = [float(np.median(moments[name])) for name in MOMENTS if name in moments]
        quartiles = np.quantile(moments["end"], (0.25, 0.75)) if len(medians) == 3 else []
    return [float(f"{value:.4g}") for value in (*medians, *quartiles)]
