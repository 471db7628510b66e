"""Finished runs in compact form: a file per question and task, with a line per run."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

from atomsep.experiments.runs import Run
from study.questions import QUESTIONS, Planned, plan_comparison, plan_tuning
from study.tasks import TASKS

FOLDER = Path(__file__).parent / "results"


@dataclass(frozen=True)
class Row:
    """A finished run.

    Attributes:
        phase: "tuning" or "comparison".
        method: its method.
        strength: its strength.
        tuned: value of the task's tuned setting.
        seed: its seed.
        settings: what differs from the experiment's defaults.
        metrics: its metrics.
        broken_down: when and how it broke down, or None.
        seconds: how long it took.
        machine: where.
        versions: of torch and of this project.
    """

    phase: str
    method: str
    strength: float
    tuned: float
    seed: int
    settings: list[str]
    metrics: dict[str, float]
    broken_down: Any
    seconds: float
    machine: str
    versions: dict[str, str]


def file_of(question: str, task: str) -> Path:
    """Where the runs of a question and task are."""
    return FOLDER / question / f"{task}.jsonl"


def read(question: str, task: str) -> list[Row]:
    """The collected runs of a question and task."""
    path = file_of(question, task)
    if not path.exists():
        return []
    return [Row(**json.loads(line)) for line in path.read_text().splitlines()]


def choose(task: str, data: Path, out: Path) -> float | None:
    """The value of the tuned setting with the best mean metric.

    A value is out if one of its runs has no finite metric, or failed: it left a log, but no result.
    None if there are runs that were not tried.
    """
    found: dict[float, list[float]] = {}
    for each in plan_tuning(task, data):
        run = Run(each.key.folder(out))
        result = run.read_result()
        if result is None and not (run.folder / "log.txt").exists():
            return None
        metric = math.nan if result is None else result["metrics"][TASKS[task].metrics[0]]
        gain = TASKS[task].sign * metric if math.isfinite(metric) else -math.inf
        found.setdefault(each.tuned, []).append(gain)
    best = max(found, key=lambda value: mean(found[value]))
    return best if math.isfinite(mean(found[best])) else None


def collect(question: str, task: str, data: Path, out: Path) -> int:
    """Add the finished runs of a question and task to those collected; returns their number."""
    tuned = choose(task, data, out)
    runs = list(plan_tuning(task, data))
    if tuned is not None:
        runs += plan_comparison(QUESTIONS[question], task, data, tuned)
    found = [*read(question, task), *(row for each in runs if (row := _row(each, out)))]
    rows = {(row.phase, row.method, row.strength, row.tuned, row.seed): row for row in found}
    if rows:
        path = file_of(question, task)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps(vars(row)) + "\n" for row in rows.values()))
    return len(rows)


def _row(each: Planned, out: Path) -> Row | None:
    result = Run(each.key.folder(out)).read_result()
    if result is None:
        return None
    machine = result["machine"]
    return Row(
        phase="tuning" if each.key.validation else "comparison",
        method=each.method,
        strength=each.strength,
        tuned=each.tuned,
        seed=each.key.seed,
        settings=list(each.settings),
        metrics={name: result["metrics"][name] for name in TASKS[each.task].metrics},
        broken_down=result.get("broken_down"),
        seconds=round(result["seconds"], 1),
        machine=machine.get("gpu") or machine["processor"],
        versions={name: result["versions"][name] for name in ("torch", "atomsep")},
    )
