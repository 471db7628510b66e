"""The tables of docs/results/, from `results/` alone.

A table stands between `<!-- table: NAME -->` and `<!-- end -->`; nothing else on a page is changed.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import mean

from atomsep.experiments.sweeps.comparison import Comparison, compare_all, deviation
from atomsep.report.numbers import interval_text, p_text, signed, spread_text
from study.questions import QUESTIONS
from study.results import Row, read
from study.tasks import TASKS

PAGES = Path(__file__).parents[1] / "docs" / "results"

PERCENT = ("top1",)
"""Metrics that are shown in per cent."""

Arm = tuple[str, float]
"""A method and its strength."""


def values_of(rows: list[Row], metric: str) -> dict[Arm, dict[int, float]]:
    """The metric of all arms by seed, in the comparison."""
    found: dict[Arm, dict[int, float]] = {}
    for row in rows:
        if row.phase == "comparison":
            found.setdefault((row.method, row.strength), {})[row.seed] = row.metrics[metric]
    return found


def compared(rows: list[Row], metric: str) -> dict[Arm, Comparison]:
    """All arms against plain training, corrected together."""
    values = values_of(rows, metric)
    plain = values.pop(("plain", 0.0), {})
    named = {f"{method} {strength:g}": (method, strength) for method, strength in values}
    by_name = {name: values[arm] for name, arm in named.items()}
    return {named[name]: each for name, each in compare_all(plain, by_name).items()}


def worst_and_mean() -> str:
    """Rules for the strength over all tasks: mean paired differences, in per cent of plain."""
    question = QUESTIONS["strength"]
    tasks = [
        name
        for name in question.tasks
        if ("plain", 0.0) in values_of(read("strength", name), TASKS[name].metrics[0])
    ]
    gains: dict[Arm, dict[str, float]] = {}
    for name in tasks:
        task, rows = TASKS[name], read("strength", name)
        plain = values_of(rows, task.metrics[0])["plain", 0.0]
        for arm, comparison in compared(rows, task.metrics[0]).items():
            scale = 100 * task.sign / mean(plain[seed] for seed in comparison.seeds)
            gains.setdefault(arm, {})[name] = scale * comparison.difference
    lines = [["rule", "strength", *tasks, "worst", "mean"]]
    for method, strengths in question.methods.items():
        for strength in sorted(strengths):
            own = gains.get((method, strength))
            if not own:
                continue
            cells = [signed(own[name], 1) if name in own else "" for name in tasks]
            ends = [min(own.values()), mean(own.values())]
            lines.append([method, f"{strength:g}", *cells, *(signed(end, 1) for end in ends)])
    return markdown(lines)


def of_task(question: str, name: str) -> str:
    """One task: mean, paired difference, seeds that gained, corrected p, runs that broke down."""
    task, rows = TASKS[name], read(question, name)
    metric = task.metrics[0]
    percent = metric in PERCENT
    if percent:
        rows = [replace(row, metrics={metric: 100 * row.metrics[metric]}) for row in rows]
    values = values_of(rows, metric)
    if not values:
        return "No runs yet.\n"
    heads = ["method", "strength", "seeds", metric + ", %" * percent, "difference", "better", "p"]
    lines = [[*heads, "broken down"]]
    comparisons = compared(rows, metric)
    order = ["plain", *QUESTIONS[question].methods]
    for (method, strength), own in sorted(values.items(), key=lambda arm: _place(order, arm[0])):
        each, broken = comparisons.get((method, strength)), 0
        for row in rows:
            same = (row.method, row.strength, row.phase) == (method, strength, "comparison")
            broken += same and row.broken_down is not None
        cells = [method, f"{strength:g}" if strength else "", str(len(own))]
        cells.append(spread_text(mean(own.values()), deviation(own.values())))
        if each is None:
            cells += ["", "", ""]
        else:
            interval = interval_text(each.low, each.high)
            plain = values["plain", 0.0]
            better = sum(task.sign * (own[seed] - plain[seed]) > 0 for seed in each.seeds)
            cells += [f"{signed(each.difference)} ({interval})", f"{better} of {len(each.seeds)}"]
            cells.append(p_text(each.t_holm))
        lines.append([*cells, str(broken) if broken else ""])
    tuned = sorted({row.tuned for row in rows if row.phase == "comparison"})
    chosen = ", ".join(f"{value:g}" for value in tuned)
    return f"{markdown(lines)}\n`{task.tuned[0]}={chosen}`, chosen for plain training.\n"


def _place(order: list[str], arm: Arm) -> tuple[int, float]:
    return order.index(arm[0]), arm[1]


def markdown(lines: list[list[str]]) -> str:
    """A table; the first line is its head."""
    head, *rest = lines
    ruled = [head, ["---", *("---:" for _ in head[1:])], *rest]
    return "".join(f"| {' | '.join(line)} |\n" for line in ruled)


TABLES: dict[str, Callable[[], str]] = {
    "worst_and_mean": worst_and_mean,
    **{
        f"{question}_{task}".replace("-", "_"): (lambda q=question, t=task: of_task(q, t))
        for question in QUESTIONS
        for task in QUESTIONS[question].tasks
    },
}


def render(text: str) -> str:
    """A page with its tables filled in."""

    def filled(match: re.Match[str]) -> str:
        return f"<!-- table: {match[1]} -->\n\n{TABLES[match[1]]()}\n<!-- end -->"

    return re.sub(r"<!-- table: (\w+) -->.*?<!-- end -->", filled, text, flags=re.DOTALL)


def fill() -> list[Path]:
    """Fill in all pages; returns them."""
    pages = sorted(PAGES.glob("*.md"))
    for page in pages:
        page.write_text(render(page.read_text()))
    return pages
