"""What the comparison of a method with the plain one shows, in words."""

from __future__ import annotations

import math
from typing import NamedTuple

from atomsep.experiments.sweeps.comparison import ENOUGH
from atomsep.report.groups import Group
from atomsep.report.numbers import interval_text, p_text, signed

SIGNIFICANT = 0.05
"""Corrected p values below this show a difference."""

BETTER, WORSE, OPEN, UNTESTED = "better", "worse", "no difference shown", "not tested"


class Verdict(NamedTuple):
    """A word, and the numbers behind it as the rest of a sentence."""

    word: str
    reason: str


def verdict(group: Group, place: int) -> Verdict | None:
    """What the seeds show about a row of a group; None if nothing is compared.

    "better" and "worse" need a paired t test below 0.05 after Holm's correction.

    Args:
        group: rows of one experiment.
        place: place of a row other than plain.
    """
    found = group.comparisons.get(place)
    if found is None:
        return None
    plain = next(row for row in group.rows if row.method == "plain")
    seeds = len(found.seeds)
    if not seeds:
        return Verdict(UNTESTED, f"no seed in common with {plain.title}")
    over = f"over {seeds} paired seed{'s' * (seeds > 1)}"
    gap = f"{signed(found.difference)} against {plain.title} {over}"
    if seeds < ENOUGH:
        return Verdict(UNTESTED, f"{gap}; a test needs {ENOUGH} seeds or more")
    if math.isnan(found.low):
        return Verdict(UNTESTED, f"{gap}; not all results are finite")
    if math.isnan(found.t_holm):
        return Verdict(UNTESTED, f"{gap}, the same in every seed, which the t test cannot judge")
    numbers = (
        f"{signed(found.difference)} (95 % interval {interval_text(found.low, found.high)}) "
        f"against {plain.title} {over}, p = {p_text(found.t_holm)}"
    )
    if found.t_holm >= SIGNIFICANT:
        return Verdict(OPEN, numbers)
    return Verdict(BETTER if (found.difference > 0) == group.higher_is_better else WORSE, numbers)


def summary(group: Group, place: int) -> str:
    """A sentence about a row: its name, what its seeds show, and the numbers."""
    title, found = group.rows[place].title, verdict(group, place)
    if found is None:
        return f"{title}: there is no plain run to compare with."
    return f"{title}: {found.word}. {found.reason}."
