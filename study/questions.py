"""The questions of the study: which methods at which strengths, on which tasks and seeds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from atomsep.experiments.registry import find_experiment, run_key
from atomsep.experiments.runs import RunKey
from study.tasks import TASKS

TUNING_SEEDS = range(100, 103)


@dataclass(frozen=True)
class Question:
    """Methods to compare with plain training, paired by seed.

    Attributes:
        asks: the question, for its page.
        tasks: names of tasks.
        methods: methods with their strengths: the weight, or the share for the rules of
            `study.rules`. Runs come in the order of the strengths.
        seeds: how many seeds.
    """

    asks: str
    tasks: tuple[str, ...]
    methods: dict[str, tuple[float, ...]]
    seeds: int = 5


SHARES = 0.1, 0.03, 0.3
QUESTIONS = {
    "strength": Question(
        "Which rule for the strength of atom modeling carries over from task to task?",
        tuple(TASKS),
        {
            "atom": (1.0, 0.2, 5.0),
            **dict.fromkeys(("atom-calibrated", "atom-capped", "atom-share"), SHARES),
            **dict.fromkeys(("atom-energy", "atom-decay", "atom-warm-up"), SHARES),
        },
    ),
}


@dataclass(frozen=True)
class Planned:
    """A run of the study.

    Attributes:
        task: name of its task.
        method: its method.
        strength: its strength; 0 for plain training.
        tuned: value of the task's tuned setting.
        settings: all assignments.
        key: the run.
    """

    task: str
    method: str
    strength: float
    tuned: float
    settings: tuple[str, ...]
    key: RunKey


def plan_tuning(name: str, data: Path) -> Iterator[Planned]:
    """The runs that tune plain training, on held-out training samples and seeds of their own."""
    for value in TASKS[name].tuned[1]:
        for seed in TUNING_SEEDS:
            yield _planned(name, data, "plain", 0.0, seed, value)


def plan_comparison(question: Question, name: str, data: Path, tuned: float) -> Iterator[Planned]:
    """The runs that compare the methods, on the test samples."""
    for seed in range(question.seeds):
        yield _planned(name, data, "plain", 0.0, seed, tuned)
    most = max(map(len, question.methods.values()))
    for place in range(most):
        for method, strengths in question.methods.items():
            for strength in strengths[place : place + 1]:
                for seed in range(question.seeds):
                    yield _planned(name, data, method, strength, seed, tuned)


def _planned(
    name: str, data: Path, method: str, strength: float, seed: int, tuned: float
) -> Planned:
    task = TASKS[name]
    settings = (*task.settings, f"{task.tuned[0]}={tuned:g}")
    if method != "plain":
        settings = (*settings, f"weight={strength:g}")
    if method in ("atom-decay", "atom-warm-up"):
        settings = (*settings, f"method.steps={task.steps}")
    key = run_key(
        *(find_experiment(task.experiment), method, seed),
        [each.format(data=data) for each in settings],
        validation=seed in TUNING_SEEDS,
    )
    return Planned(name, method, strength, tuned, settings, key)
