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
TINY = "tiny form"


class Verdict(NamedTuple):
    """A word, and the numbers behind it: difference, interval, seeds, p value."""

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
    seeds = len(found.seeds)
    if not seeds:
        return Verdict(UNTESTED, "no seed in common")
    over = f"over {seeds} paired seed{'s' * (seeds > 1)}"
    gap = signed(found.difference)
    if seeds < ENOUGH:
        return Verdict(UNTESTED, f"{gap} {over}; a test needs at least {ENOUGH}")
    if math.isnan(found.low):
        return Verdict(UNTESTED, f"{gap} {over}; not all results are finite")
    if math.isnan(found.t_holm):
        return Verdict(UNTESTED, f"{gap} {over}, in each of them, which a t test cannot judge")
    interval, p = interval_text(found.low, found.high), p_text(found.t_holm)
    reason = f"{gap} (95 % interval {interval}) {over}, p = {p}"
    if found.t_holm >= SIGNIFICANT:
        return Verdict(OPEN, reason)
    return Verdict(BETTER if (found.difference > 0) == group.higher_is_better else WORSE, reason)


def shown_verdict(group: Group, place: int) -> Verdict | None:
    """A verdict as pages show it: runs of the tiny form are neither better nor worse."""
    found = verdict(group, place)
    return found._replace(word=TINY) if found is not None and group.tiny else found


def summary(group: Group, place: int) -> str:
    """A sentence about a row: what it is compared with, what the seeds show, and the numbers."""
    title, found = group.rows[place].title, verdict(group, place)
    if found is None:
        return f"{title}: there is no plain run to compare with."
    plain = next(row.title for row in group.rows if row.method == "plain")
    return f"{title} against {plain}: {found.word}. {found.reason}."
