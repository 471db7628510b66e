"""Tables over all tasks."""

from __future__ import annotations

from statistics import fmean, median

from atomsep.experiments.sweeps.comparison import compare, deviation
from atomsep.report.numbers import interval_text, p_text, signed, spread_text
from study.equilibrium import table_rows
from study.gains import MODE_SEEKING, PEERS, SUMMARY, Gain, answer, gains_in, shown
from study.questions import PLAIN, QUESTIONS, Arm
from study.results import read
from study.tables import NARROW, in_words, markdown, name_of, rows_of, values_of
from study.tasks import TASKS

WIDELY = 4
"""Tasks that a rule ran on to have a column of its own."""


def by_rule() -> dict[Arm, dict[str, Gain]]:
    """The gains of every rule by task, the rules with most tasks first, then the least harmful."""
    gains: dict[Arm, dict[str, Gain]] = {}
    for task in QUESTIONS["strength"].arms:
        for arm, gain in gains_in("strength", task).items():
            gains.setdefault(arm, {})[task] = gain
    order = sorted(gains, key=lambda arm: (-len(gains[arm]), -worst(gains[arm])[0]))
    return {arm: gains[arm] for arm in order}


def worst(gains: dict[str, Gain]) -> tuple[float, str]:
    """The smallest gain, and its task."""
    return min((gain.mean, task) for task, gain in gains.items())


def rules() -> str:
    """Rules for the strength over all tasks: mean paired differences, in per cent of plain.

    Sorted by the study's criterion: the worst task first, among rules with equally many tasks.
    """
    lines = [["rule", "tasks", "worst task", "gain there, %", "mean gain, %", "worst seed, %"]]
    for arm, own in by_rule().items():
        gain, task = worst(own)
        ends = gain, fmean(each.mean for each in own.values())
        seed = min(min(each.pairs) for each in own.values())
        cells = [str(len(own)), TASKS[task].title, *(signed(end, 1) for end in (*ends, seed))]
        lines.append([name_of(arm), *cells])
    return markdown(lines)


def rules_by_task() -> str:
    """The gains of the rules that ran on most tasks, by task."""
    widely = {arm: own for arm, own in by_rule().items() if len(own) >= WIDELY}
    lines = [["task", *map(name_of, widely)]]
    for task in QUESTIONS["strength"].arms:
        cells = [signed(own[task].mean, 1) if task in own else "" for own in widely.values()]
        if any(cells):
            lines.append([TASKS[task].title, *cells])
    return markdown(lines)


def shares() -> str:
    """What weights amount to: the gradient's share at the start and at the end of the training."""
    lines = [["task", "arm", "share at the start, %", "share at the end, %"]]
    for task in TASKS:
        found: dict[Arm, list[list[float]]] = {}
        for row in read(task):
            if row.method == "atom" and not row.options and len(row.shares) == 2:
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
    for question, task, chosen, _ in SUMMARY:
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


def summary() -> str:
    """Every task in one line: plain training against atom modeling."""
    lines = [["task", "plain training", "arm", "seeds", "gain, %", "p", "answer"]]
    for line, gain in shown(SUMMARY).items():
        metric = TASKS[line.task].metrics[0]
        plain = values_of(rows_of(line.question, line.task), metric)[PLAIN]
        interval = f"{signed(gain.low, 1)} to {signed(gain.high, 1)}"
        arm = name_of(line.arm) + ("" if line.before else "*")
        cells = [f"{in_words(metric)}: {fmean(plain.values()):.2f}", arm, str(len(gain.pairs))]
        cells += [f"{signed(gain.mean, 1)} ({interval})", p_text(gain.p_holm)]
        lines.append([TASKS[line.task].title, *cells, answer(gain).replace(" ", NARROW)])
    return markdown(lines)


def coverage() -> str:
    """Precision and recall of averaged generators: whether a gain is quality or variety."""
    lines = [["task", "arm", "seeds", "precision", "p", "recall", "p"]]
    for line in (*SUMMARY, *(each for each in PEERS if each.arm == MODE_SEEKING)):
        if not {"ema_precision", "ema_recall"} <= set(TASKS[line.task].metrics):
            continue
        cells: list[str] = []
        seeds = 0
        for metric in ("ema_precision", "ema_recall"):
            values = values_of(rows_of(line.question, line.task), metric)
            each = compare(values.get(PLAIN, {}), values.get(line.arm, {}))
            seeds = len(each.seeds)
            gap = f"{signed(each.difference)} ({interval_text(each.low, each.high)})"
            cells += [gap, p_text(each.t)]
        if seeds:
            lines.append([TASKS[line.task].title, name_of(line.arm), str(seeds), *cells])
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
