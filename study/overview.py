"""Tables over all tasks."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from statistics import fmean, median
from typing import NamedTuple

from atomsep.experiments.sweeps.comparison import ENOUGH, Comparison, compare, deviation, holm
from atomsep.experiments.sweeps.comparison import Values as Seeds
from atomsep.report.numbers import interval_text, p_text, signed, spread_text
from atomsep.report.verdict import SIGNIFICANT
from study.equilibrium import table_rows
from study.questions import PLAIN, QUESTIONS, Arm
from study.results import read
from study.tables import (
    NARROW,
    compared,
    gain_sign,
    in_words,
    markdown,
    name_of,
    rows_of,
    values_of,
)
from study.tasks import TASKS


class Gain(NamedTuple):
    """What an arm gains over plain training, in per cent of plain training's mean.

    Attributes:
        mean: over the seeds that both have.
        low: lower end of its 95 % interval.
        high: upper end.
        worst_pair: the smallest gain of a seed.
        seeds: how many.
        p: of the paired t test, corrected for all arms of the task.
    """

    mean: float
    low: float
    high: float
    worst_pair: float
    seeds: int
    p: float


def gains_in(question: str, task: str, metric: str = "") -> dict[Arm, Gain]:
    """Every arm of a question with enough seeds against plain training."""
    metric = metric or TASKS[task].metrics[0]
    values = values_of(rows_of(question, task), metric)
    return {
        arm: _gain(metric, values[PLAIN], values[arm], each)
        for arm, each in compared(task, QUESTIONS[question].phase, metric).items()
        if arm in values and len(each.seeds) >= ENOUGH
    }


def r1_gain() -> Gain:
    """What R1 gains on MNIST, without atom modeling."""
    metric = TASKS["example-mnist"].metrics[0]
    without, penalised = (
        values_of(rows_of("example", task), metric)[PLAIN]
        for task in ("example-mnist", "example-mnist-r1")
    )
    return _gain(metric, without, penalised, compare(without, penalised))


def _gain(metric: str, plain: Seeds, own: Seeds, each: Comparison) -> Gain:
    scale = 100 * gain_sign(metric) / fmean(plain[seed] for seed in each.seeds)
    low, high = sorted((scale * each.low, scale * each.high))
    pairs = [scale * (own[seed] - plain[seed]) for seed in each.seeds]
    return Gain(fmean(pairs), low, high, min(pairs), len(pairs), each.t_holm)


def rules() -> str:
    """Rules for the strength over all tasks: mean paired differences, in per cent of plain.

    Sorted by the study's criterion: the worst task first, among rules with equally many tasks.
    """
    gains: dict[Arm, dict[str, Gain]] = {}
    for task in QUESTIONS["strength"].arms:
        for arm, gain in gains_in("strength", task).items():
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


class Shown(NamedTuple):
    """A line of the overview: an arm of a question on a task."""

    question: str
    task: str
    arm: Arm


SUMMARY = (
    Shown("gans", "faces", Arm("atom-calibrated", 0.1)),
    Shown("gans", "small-faces", Arm("atom-calibrated", 0.1)),
    Shown("gans", "small-cifar10", Arm("atom-calibrated", 0.1)),
    Shown("example", "example-mnist", Arm("atom", 10.0)),
    Shown("example", "example-mnist-r1", Arm("atom", 10.0)),
    Shown("example", "example-stacked", Arm("atom", 10.0)),
    Shown("strength", "stacked", Arm("atom", 10.0)),
    Shown("strength", "small-stacked", Arm("atom", 1.0)),
    Shown("settings", "digits", Arm("atom", 1.0)),
    Shown("strength", "flowers", Arm("atom", 0.2)),
    Shown("classifiers", "pets-10", Arm("atom", 0.2)),
    Shown("text", "cola", Arm("atom", 0.01)),
    Shown("text", "poem", Arm("atom", 0.01)),
    Shown("paper", "demo", Arm("atom", 12.5)),
    Shown("settings", "mixtures", Arm("atom", 2.5)),
)
"""What the overview shows of each task: one arm of atom modeling."""

PEERS = (
    Shown("gans", "small-faces", Arm("mode-seeking", 1.0)),
    Shown("gans", "small-cifar10", Arm("mode-seeking", 1.0)),
    Shown("settings", "digits", Arm("mode-seeking", 1.0)),
    Shown("peers", "flowers", Arm("koleo", 1.0)),
    Shown("classifiers", "pets-10", Arm("koleo", 0.1)),
    Shown("peers", "flowers", Arm("atom-no-energy", 1.0)),
    Shown("classifiers", "pets-10", Arm("atom-no-energy", 1.0)),
)
"""Other losses, and parts of atom modeling, on the same tasks."""

SMALL = 5.0
"""Gains below this, in per cent, are called small where a larger one is excluded."""


def shown(lines: Sequence[Shown]) -> dict[Shown, Gain]:
    """The lines that have been trained."""
    gains = {line: gains_in(line.question, line.task).get(line.arm) for line in lines}
    return {line: gain for line, gain in gains.items() if gain is not None}


def averages() -> dict[Shown, Gain]:
    """The GANs of the overview, by the moving average of the generator."""
    names = {line: f"ema_{TASKS[line.task].metrics[0]}" for line in shown(SUMMARY)}
    return {
        line: gains_in(line.question, line.task, name)[line.arm]
        for line, name in names.items()
        if name in TASKS[line.task].metrics
    }


def smallest_p() -> float:
    """The smallest p of all lines of the overview, corrected for their number as well."""
    raw = [
        compared(line.task, QUESTIONS[line.question].phase, TASKS[line.task].metrics[0])[line.arm].t
        for line in shown(SUMMARY)
    ]
    return min(holm(raw))


def answer(gain: Gain) -> str:
    """What a gain shows: a difference, that it is small at most, or nothing.

    Example:
        >>> answer(Gain(0.3, -1.4, 1.9, -2.0, 5, 0.9)), answer(Gain(30, -41, 104, -9, 5, 0.6))
        ('under 2 %', 'open')
    """
    if gain.p < SIGNIFICANT:
        return "better" if gain.mean > 0 else "worse"
    return f"under {max(1, ceil(gain.high))} %" if gain.high <= SMALL else "open"


def summary() -> str:
    """Every task in one line: plain training against atom modeling."""
    lines = [["task", "metric", "seeds", "plain", "arm", "gain, %", "p", "answer"]]
    for line, gain in shown(SUMMARY).items():
        metric = TASKS[line.task].metrics[0]
        plain = values_of(rows_of(line.question, line.task), metric)[PLAIN]
        interval = f"{signed(gain.low, 1)} to {signed(gain.high, 1)}"
        cells = [str(gain.seeds), f"{fmean(plain.values()):.2f}", name_of(line.arm)]
        cells += [
            f"{signed(gain.mean, 1)} ({interval})",
            p_text(gain.p),
            answer(gain).replace(" ", NARROW),
        ]
        lines.append([TASKS[line.task].title, in_words(metric), *cells])
    return markdown(lines)


def equilibrium() -> str:
    """Whether trained distances follow Theorem 2."""
    return markdown(table_rows())


SAMPLED = (
    ("settings", "mixtures", Arm("atom", 2.5), Arm("atom", 2.5, ("method.pairs=sampled",))),
    (
        *("settings", "digits", Arm("atom", 1.0)),
        Arm("atom", 1.0, ("method.pairs=sampled", "method.tokens=16")),
    ),
)
"""All tokens and pairs, and the same weight with the paper's sampling."""


def sampling() -> str:
    """The exact loss against the paper's sampling, paired by seed."""
    heads = ["seeds", "all tokens and pairs", "sampled", "sampled minus all", "p"]
    lines = [["task", "metric", *heads]]
    for question, task, exact, sampled in SAMPLED:
        metric = TASKS[task].metrics[0]
        values = values_of(rows_of(question, task), metric)
        each = compare(values[exact], values[sampled])
        spreads = (
            spread_text(fmean(values[arm].values()), deviation(values[arm].values()))
            for arm in (exact, sampled)
        )
        gap = f"{signed(each.difference)} ({interval_text(each.low, each.high)})"
        cells = [str(len(each.seeds)), *spreads, gap, p_text(each.t)]
        lines.append([TASKS[task].title, in_words(metric), *cells])
    return markdown(lines)
