"""Tables over all tasks, and the pages in which tables are filled in."""

from __future__ import annotations

import re
from pathlib import Path
from statistics import fmean, median
from typing import NamedTuple

from atomsep.experiments.sweeps.comparison import ENOUGH
from atomsep.report.numbers import interval_text, p_text, signed
from study.equilibrium import table_rows
from study.questions import PLAIN, QUESTIONS, Arm
from study.results import read
from study.tables import (
    PAGES,
    Values,
    compared,
    gain_sign,
    in_words,
    markdown,
    name_of,
    of_task,
    rows_of,
    values_of,
)
from study.tasks import TASKS


class Gain(NamedTuple):
    """What an arm gains over plain training, in per cent of plain training."""

    mean: float
    worst_pair: float


def gains_in(values: Values, metric: str) -> dict[Arm, Gain]:
    """Every arm with enough seeds against plain training."""
    found = {}
    for arm, each in compared(values).items():
        plain = {seed: values[PLAIN][seed] for seed in each.seeds}
        if len(plain) >= ENOUGH:
            scale = 100 * gain_sign(metric) / fmean(plain.values())
            pairs = [scale * (values[arm][seed] - plain[seed]) for seed in each.seeds]
            found[arm] = Gain(fmean(pairs), min(pairs))
    return found


def rules() -> str:
    """Rules for the strength over all tasks: mean paired differences, in per cent of plain.

    Sorted by the study's criterion: the worst task first, among rules with equally many tasks.
    """
    gains: dict[Arm, dict[str, Gain]] = {}
    for task in QUESTIONS["strength"].arms:
        metric = TASKS[task].metrics[0]
        for arm, gain in gains_in(values_of(rows_of("strength", task), metric), metric).items():
            gains.setdefault(arm, {})[task] = gain
    tasks = [
        task for task in QUESTIONS["strength"].arms if any(task in own for own in gains.values())
    ]
    lines = [["rule", *(TASKS[task].title for task in tasks), "worst task", "mean", "worst pair"]]

    def worst(own: dict[str, Gain]) -> float:
        return min(gain.mean for gain in own.values())

    for arm, own in sorted(gains.items(), key=lambda one: (-len(one[1]), -worst(one[1]))):
        cells = [signed(own[task].mean, 1) if task in own else "" for task in tasks]
        ends = (
            *(worst(own), fmean(gain.mean for gain in own.values())),
            min(gain.worst_pair for gain in own.values()),
        )
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
            rounded = (f"{float(f'{end:.2g}'):,g}" for end in ends)
            lines.append([TASKS[task].title, name_of(arm), *rounded])
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


def distances() -> str:
    """How far apart samples are at the layer, and how the distances spread."""
    heads = ["start", "half way", "end", "quartiles at the end"]
    lines = [["task", "arm", *(f"{head}" for head in heads)]]
    for question, task, chosen in SUMMARY:
        found: dict[Arm, list[list[float]]] = {}
        for row in rows_of(question, task):
            if row.arm in (PLAIN, chosen) and row.distances:
                found.setdefault(row.arm, []).append(row.distances)
        for arm in sorted(found, key=lambda arm: arm != PLAIN):
            start, half, end, low, high = (fmean(each) for each in zip(*found[arm], strict=True))
            cells = [f"{start:.2f}", f"{half:.2f}", f"{end:.2f}", f"{low:.2f} to {high:.2f}"]
            lines.append([TASKS[task].title, name_of(arm), *cells])
    return markdown(lines)


def budget() -> str:
    """What each question takes, and what of it has been trained."""
    lines = [["question", "task", "runs", "trained", "minutes of an H200"]]
    for name, question in QUESTIONS.items():
        for task, arms in question.arms.items():
            seeds = question.seeds.get(task, 5)
            planned = (len(arms) + 1) * seeds
            trained = len(rows_of(name, task))
            minutes = planned * TASKS[task].gpu_seconds / 60
            cost = f"{minutes:.0f}" if minutes else "CPU"
            lines.append([name, TASKS[task].title, str(planned), str(trained), cost])
    return markdown(lines)


SUMMARY = (
    ("paper", "demo", Arm("atom", 12.5)),
    ("settings", "mixtures", Arm("atom", 2.5)),
    ("gans", "faces", Arm("atom-calibrated", 0.1)),
    ("example", "example-mnist", Arm("atom", 10.0)),
    ("example", "example-mnist-r1", Arm("atom", 10.0)),
    ("example", "example-stacked", Arm("atom", 10.0)),
    ("strength", "stacked", Arm("atom", 10.0)),
    ("strength", "small-stacked", Arm("atom", 1.0)),
    ("strength", "flowers", Arm("atom", 0.2)),
    ("settings", "digits", Arm("atom", 1.0)),
    ("text", "poem", Arm("atom", 0.01)),
)
"""What the overview shows of each task: its question and the arm of atom modeling."""


def summary() -> str:
    """Every task in one line: plain training against atom modeling."""
    lines = [["task", "metric", "seeds", "plain", "arm", "difference", "p"]]
    for question, task, arm in SUMMARY:
        metric = TASKS[task].metrics[0]
        values = values_of(rows_of(question, task), metric)
        if arm not in values:
            continue
        each = compared(values)[arm]
        plain = fmean(values[PLAIN][seed] for seed in each.seeds)
        gain = f"{signed(each.difference)} ({interval_text(each.low, each.high)})"
        cells = [str(len(each.seeds)), f"{plain:.2f}", name_of(arm), gain, p_text(each.t_holm)]
        lines.append([TASKS[task].title, in_words(metric), *cells])
    return markdown(lines)


def equilibrium() -> str:
    """Whether trained distances follow Theorem 2."""
    return markdown(table_rows())


TABLES = (rules, shares, broken, distances, equilibrium, budget, summary)


def table(name: str) -> str:
    """A table by its name; see `study.tables`."""
    whole = {each.__name__: each for each in TABLES}
    return whole[name]() if name in whole else of_task(*name.split())


def render(text: str) -> str:
    """A page with its tables filled in."""

    def filled(match: re.Match[str]) -> str:
        return f"<!-- table: {match[1]} -->\n\n{table(match[1])}\n<!-- end -->"

    return re.sub(r"<!-- table: ([\w -]+) -->.*?<!-- end -->", filled, text, flags=re.DOTALL)


def fill() -> list[Path]:
    """Fill in all pages with tables of the study; returns them."""
    pages = [page for page in PAGES if "<!-- table: " in page.read_text()]
    for page in pages:
        page.write_text(render(page.read_text()))
    return pages
