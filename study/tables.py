"""The tables of the study's pages, from `results/` alone.

A table stands between `<!-- table: NAME -->` and `<!-- end -->`; nothing else on a page is changed.
NAME is that of a function in `study.pages.TABLES`, `QUESTION TASK` or `QUESTION TASK METRIC`.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import isfinite
from pathlib import Path
from statistics import fmean

from atomsep.experiments.sweeps.comparison import Comparison, compare_all, deviation
from atomsep.report.numbers import interval_text, p_text, signed, spread_text
from study.questions import PHASES, PLAIN, QUESTIONS, Arm
from study.results import Row, read, with_strengths
from study.tasks import TASKS

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "docs/guide.md", *sorted((ROOT / "docs/results").glob("*.md"))]

PERCENT = ("top1", "accuracy", "mcc", "f1", "ece", "precision", "recall")
"""Metrics that are shown in per cent, also those of a generator's average."""

LESS_IS_BETTER = ("frechet", "reverse_kl", "ece", "nll")
"""Beginnings of the names of metrics of which less is better."""

NAMES = {
    "frechet_classifier": "Fréchet distance",
    "frechet_efficientnet_lite0": "Fréchet distance",
    "frechet_efficientnet_lite0_64": "Fréchet distance",
    "modes": "modes of 1,000",
    "reverse_kl": "reverse KL",
    "mcc": "MCC",
    "f1": "macro F1",
    "top1": "top-1",
    "ece": "ECE",
    "nll": "NLL",
}
"""Metrics in words, where their names are not."""

WORDS = (
    "task",
    "metric",
    "arm",
    "answer",
    "plain training",
    "nearest task here",
    "worst task",
    "a gain like the paper's",
)
"""Heads of columns of words; the first column is one too."""

P = ("p", "corrected")
"""Heads of the p values: of one comparison, and corrected for all arms of the task."""

NARROW = "\u00a0"
"""A space at which no line breaks, for cells that are narrow."""

Values = dict[Arm, dict[int, float]]
"""A metric by arm and seed."""


def rows_of(question: str, task: str) -> list[Row]:
    """The collected runs of plain training and of a question's arms."""
    asked = QUESTIONS[question]
    arms = {PLAIN, *with_strengths(task, asked.arms[task])}
    seeds = PHASES[asked.phase][: asked.seeds.get(task, 5)]
    return [row for row in read(task, asked.phase) if row.arm in arms and row.seed in seeds]


def values_of(rows: Iterable[Row], metric: str) -> Values:
    """The metric of all arms by seed."""
    scale = 100 if metric.removeprefix("ema_") in PERCENT else 1
    found: Values = {}
    for row in rows:
        found.setdefault(row.arm, {})[row.seed] = scale * row.metrics[metric]
    return found


def compared(task: str, phase: str, metric: str) -> dict[Arm, Comparison]:
    """All arms of a phase against plain training, corrected together, whichever question asks."""
    values = values_of(read(task, phase), metric)
    plain = values.get(PLAIN, {})
    named = {name_of(arm): arm for arm in values if arm != PLAIN}
    pairs = compare_all(plain, {name: values[arm] for name, arm in named.items()})
    return {named[name]: each for name, each in pairs.items()}


def name_of(arm: Arm) -> str:
    """An arm in words.

    Example:
        >>> name_of(Arm("atom", 1.0, ("method.norm=1",)))
        'atom 1, norm=1'
    """
    strength = f" {arm.strength:g}" if arm.strength else ""
    options = "".join(f", {each.removeprefix('method.')}" for each in arm.options)
    return f"{arm.method}{strength}{options}"


def in_words(metric: str) -> str:
    """A metric with its unit.

    Example:
        >>> in_words("ema_recall")
        'recall of the average, %'
    """
    plain = metric.removeprefix("ema_")
    average = " of the average" if plain != metric else ""
    return NAMES.get(plain, plain) + average + (", %" if plain in PERCENT else "")


def gain_sign(metric: str) -> int:
    """1 if more of a metric is better, -1 if less is."""
    return -1 if metric.removeprefix("ema_").startswith(LESS_IS_BETTER) else 1


def of_task(question: str, task: str, metric: str = "") -> str:
    """One task: mean, paired difference, seeds that gained, corrected p, runs that broke down."""
    metric = metric or TASKS[task].metrics[0]
    rows = rows_of(question, task)
    values = values_of(rows, metric)
    if PLAIN not in values:
        return "No runs yet.\n"
    lines = [["arm", "seeds", in_words(metric), "difference", "better", *P, "broken down"]]
    comparisons = compared(task, QUESTIONS[question].phase, metric)
    for arm in _ordered(question, task, values):
        own, each = values[arm], comparisons.get(arm)
        cells = [name_of(arm), str(len(own))]
        cells.append(spread_text(fmean(own.values()), deviation(own.values())))
        if each is None:
            cells += ["", "", "", ""]
        else:
            gained = (gain_sign(metric) * (own[s] - values[PLAIN][s]) > 0 for s in each.seeds)
            interval = f" ({interval_text(each.low, each.high)})" if isfinite(each.low) else ""
            cells += [signed(each.difference) + interval, f"{sum(gained)} of {len(each.seeds)}"]
            cells += [p_text(each.t), p_text(each.t_holm)]
        ends = sum(row.broken_down is not None for row in rows if row.arm == arm)
        lines.append([*cells, str(ends) if ends else ""])
    tuned = ", ".join(f"{value:g}" for value in sorted({row.tuned for row in rows}))
    name, candidates = TASKS[task].tuned
    how = "chosen for plain training" if len(candidates) > 1 else "fixed"
    return f"{markdown(lines)}\n`{name}={tuned}`, {how}.\n"


def _ordered(question: str, task: str, values: Values) -> list[Arm]:
    """Plain training, then methods in the order of the question, each by its strength."""
    asked = [arm._replace(strength=None) for arm in QUESTIONS[question].arms[task]]
    places = {arm: place for place, arm in reversed(list(enumerate(asked)))}
    return sorted(
        values,
        key=lambda arm: (places.get(arm._replace(strength=None), -1), arm.strength or 0.0),
    )


def markdown(lines: list[list[str]]) -> str:
    """A table; the first line is its head, and columns without any text are left out."""
    head, *rest = lines
    kept = [place for place in range(len(head)) if any(line[place] for line in rest) or not rest]
    rule = ["---:" if place and name not in WORDS else "---" for place, name in enumerate(head)]
    ruled = [head, rule, *rest]
    return "".join(f"| {' | '.join(line[place] for place in kept)} |\n" for line in ruled)
