"""What arms gain over plain training, and which of them the overview shows."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from statistics import fmean
from typing import NamedTuple

from atomsep.experiments.sweeps.comparison import ENOUGH, Comparison, compare, holm
from atomsep.experiments.sweeps.comparison import Values as Seeds
from atomsep.report.verdict import SIGNIFICANT
from study.questions import PLAIN, QUESTIONS, Arm
from study.tables import compared, gain_sign, rows_of, values_of
from study.tasks import TASKS


class Gain(NamedTuple):
    """What an arm gains over plain training, in per cent of plain training's mean.

    Attributes:
        mean: over the seeds that both have.
        low: lower end of its 95 % interval.
        high: upper end.
        pairs: the gain of every seed.
        p: of the paired t test.
        p_holm: the same, corrected for all arms of the task.
    """

    mean: float
    low: float
    high: float
    pairs: tuple[float, ...]
    p: float
    p_holm: float


class Shown(NamedTuple):
    """A line of the overview: an arm of a question on a task.

    Attributes:
        question: name of the question.
        task: name of the task.
        arm: the arm.
        before: whether the arm was chosen before its runs.
    """

    question: str
    task: str
    arm: Arm
    before: bool = True


CALIBRATED, MODE_SEEKING = Arm("atom-calibrated", 0.1), Arm("mode-seeking", 1.0)
SUMMARY = (
    Shown("gans", "faces", CALIBRATED),
    Shown("gans", "small-faces", CALIBRATED),
    Shown("gans", "small-cifar10", CALIBRATED),
    Shown("example", "example-mnist", Arm("atom", 10.0), before=False),
    Shown("example", "example-mnist-r1", Arm("atom", 10.0), before=False),
    Shown("strength", "small-mnist", CALIBRATED),
    Shown("strength", "small-mnist-usual", CALIBRATED),
    Shown("strength", "small-mnist-r1", CALIBRATED),
    Shown("strength", "small-mnist-long", CALIBRATED),
    Shown("strength", "stacked", Arm("atom", 10.0), before=False),
    Shown("strength", "small-stacked", Arm("atom", 1.0), before=False),
    Shown("settings", "digits", Arm("atom", 1.0)),
    Shown("strength", "flowers", Arm("atom", 0.2), before=False),
    Shown("classifiers", "pets-10", Arm("atom", 0.2)),
    Shown("classifiers", "pets-10-strong", Arm("atom", 0.2)),
    Shown("text", "cola", Arm("atom", 0.01)),
    Shown("text", "poem", Arm("atom", 0.01)),
    Shown("paper", "demo", Arm("atom", 12.5)),
    Shown("settings", "mixtures", Arm("atom", 2.5)),
)
"""What the overview shows of each task: one arm of atom modeling."""

PEERS = (
    Shown("gans", "small-faces", MODE_SEEKING),
    Shown("gans", "small-cifar10", MODE_SEEKING),
    Shown("settings", "digits", MODE_SEEKING),
    Shown("peers", "flowers", Arm("koleo", 1.0), before=False),
    Shown("classifiers", "pets-10", Arm("koleo", 0.1)),
    Shown("peers", "flowers", Arm("atom-no-energy", 1.0), before=False),
    Shown("classifiers", "pets-10", Arm("atom-no-energy", 1.0)),
)
"""Other losses, and parts of atom modeling, on the same tasks."""

SMALL = 5.0
"""Gains and losses of up to so many per cent are called small where larger ones are excluded."""


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
    pairs = tuple(scale * (own[seed] - plain[seed]) for seed in each.seeds)
    return Gain(fmean(pairs), low, high, pairs, each.t, each.t_holm)


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
    """The smallest p of the overview, corrected for the arms of its task and for all lines."""
    return min(holm([gain.p_holm for gain in shown(SUMMARY).values()]))


def answer(gain: Gain) -> str:
    """What a gain shows: a difference, that none is large, or nothing.

    Example:
        >>> def shows(low: float, high: float) -> str:
        ...     return answer(Gain((low + high) / 2, low, high, (), 0.5, 0.9))
        >>> shows(-1.4, 1.9), shows(-18.9, 3.5), shows(-2.3, 17.5), shows(-41, 104)
        ('within ±2 %', 'no gain above 4 %', 'no loss above 3 %', 'open')
    """
    if gain.p_holm < SIGNIFICANT:
        return "better" if gain.mean > 0 else "worse"
    low, high = ceil(-gain.low), ceil(gain.high)
    if max(low, high) <= SMALL:
        return f"within ±{max(low, high)} %"
    if high <= SMALL:
        return f"no gain above {max(1, high)} %"
    return f"no loss above {max(1, low)} %" if low <= SMALL else "open"
