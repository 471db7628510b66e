"""The tables of docs/results/, from `results/` alone.

A table stands between `<!-- table: NAME -->` and `<!-- end -->`; nothing else on a page is changed.
NAME is `rules`, `shares`, `broken`, `QUESTION TASK` or `QUESTION TASK METRIC`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from math import isfinite
from pathlib import Path
from statistics import fmean, median

from atomsep.experiments.sweeps.comparison import Comparison, compare_all, deviation
from atomsep.report.numbers import interval_text, p_text, signed, spread_text
from study.questions import PHASES, PLAIN, QUESTIONS, Arm
from study.results import Row, read, with_strengths
from study.tasks import TASKS

PAGES = Path(__file__).parents[1] / "docs" / "results"

PERCENT = ("top1", "accuracy", "mcc", "f1", "ece", "precision", "recall")
"""Metrics that are shown in per cent, also those of a generator's average."""

LESS_IS_BETTER = ("frechet", "reverse_kl", "ece", "nll")
"""Beginnings of the names of metrics of which less is better."""

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


def compared(values: Values) -> dict[Arm, Comparison]:
    """All arms against plain training, corrected together."""
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


def gain_sign(metric: str) -> int:
    """1 if more of a metric is better, -1 if less is."""
    return -1 if metric.removeprefix("ema_").startswith(LESS_IS_BETTER) else 1


def rules() -> str:
    """Rules for the strength over all tasks: mean paired differences, in per cent of plain.

    The best rule by the criterion of the study comes first, among those that all tasks have.
    """
    gains: dict[Arm, dict[str, float]] = {}
    question = QUESTIONS["strength"]
    for task in question.arms:
        metric = TASKS[task].metrics[0]
        values = values_of(rows_of("strength", task), metric)
        for arm, each in compared(values).items():
            if each.seeds:
                plain = fmean(values[PLAIN][seed] for seed in each.seeds)
                gain = 100 * gain_sign(metric) * each.difference / plain
                gains.setdefault(arm, {})[task] = gain
    tasks = [task for task in question.arms if any(task in own for own in gains.values())]
    lines = [["rule", *tasks, "worst", "mean"]]
    for arm, own in sorted(gains.items(), key=lambda one: (-len(one[1]), -min(one[1].values()))):
        cells = [signed(own[task], 1) if task in own else "" for task in tasks]
        ends = min(own.values()), fmean(own.values())
        lines.append([name_of(arm), *cells, *(signed(end, 1) for end in ends)])
    return markdown(lines)


def shares() -> str:
    """What weights amount to: the gradient's share at the start and at the end of the training."""
    lines = [["task", "arm", "share at the start, %", "share at the end, %"]]
    for task in QUESTIONS["strength"].arms:
        found: dict[Arm, list[list[float]]] = {}
        for row in rows_of("strength", task):
            if row.method == "atom" and len(row.shares) == 2:
                found.setdefault(row.arm, []).append(row.shares)
        for arm in sorted(found):
            ends = (median(100 * share for share in end) for end in zip(*found[arm], strict=True))
            lines.append([TASKS[task].title, name_of(arm), *(f"{end:.2g}" for end in ends)])
    return markdown(lines)


def broken() -> str:
    """GANs that broke down, by arm."""
    lines = [["task", "arm", "runs", "broke down"]]
    for task in TASKS:
        runs: dict[Arm, list[bool]] = {}
        for row in read(task):
            if row.phase != "tuning":
                runs.setdefault(row.arm, []).append(row.broken_down is not None)
        if any(map(any, runs.values())):
            for arm, each in sorted(runs.items(), key=lambda one: (one[0] != PLAIN, one[0])):
                lines.append([TASKS[task].title, name_of(arm), str(len(each)), str(sum(each))])
    return markdown(lines)


def of_task(question: str, task: str, metric: str = "") -> str:
    """One task: mean, paired difference, seeds that gained, corrected p, runs that broke down."""
    metric = metric or TASKS[task].metrics[0]
    rows = rows_of(question, task)
    values = values_of(rows, metric)
    if PLAIN not in values:
        return "No runs yet.\n"
    unit = ", %" if metric.removeprefix("ema_") in PERCENT else ""
    lines = [["arm", "seeds", metric + unit, "difference", "better", "p", "broken down"]]
    comparisons = compared(values)
    for arm in _ordered(question, task, values):
        own, each = values[arm], comparisons.get(arm)
        cells = [name_of(arm), str(len(own))]
        cells.append(spread_text(fmean(own.values()), deviation(own.values())))
        if each is None:
            cells += ["", "", ""]
        else:
            gained = (gain_sign(metric) * (own[s] - values[PLAIN][s]) > 0 for s in each.seeds)
            interval = f" ({interval_text(each.low, each.high)})" if isfinite(each.low) else ""
            cells += [signed(each.difference) + interval, f"{sum(gained)} of {len(each.seeds)}"]
            cells.append(p_text(each.t_holm))
        ends = sum(row.broken_down is not None for row in rows if row.arm == arm)
        lines.append([*cells, str(ends) if ends else ""])
    tuned = ", ".join(f"{value:g}" for value in sorted({row.tuned for row in rows}))
    return f"{markdown(lines)}\n`{TASKS[task].tuned[0]}={tuned}`, chosen for plain training.\n"


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
    ruled = [head, ["---", *("---:" for _ in head[1:])], *rest]
    return "".join(f"| {' | '.join(line[place] for place in kept)} |\n" for line in ruled)


def table(name: str) -> str:
    """A table by its name; see the module."""
    whole = {"rules": rules, "shares": shares, "broken": broken}
    return whole[name]() if name in whole else of_task(*name.split())


def render(text: str) -> str:
    """A page with its tables filled in."""

    def filled(match: re.Match[str]) -> str:
        return f"<!-- table: {match[1]} -->\n\n{table(match[1])}\n<!-- end -->"

    return re.sub(r"<!-- table: ([\w -]+) -->.*?<!-- end -->", filled, text, flags=re.DOTALL)


def fill() -> list[Path]:
    """Fill in all pages; returns them."""
    pages = sorted(PAGES.glob("*.md"))
    for page in pages:
        page.write_text(render(page.read_text()))
    return pages
