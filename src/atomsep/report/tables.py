"""Which tables there are: the paper's, from results, with the paper's own figures beside them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import compress
from statistics import fmean
from typing import NamedTuple

from atomsep.experiments.sweeps.comparison import Comparison, deviation
from atomsep.methods import ATOM_MODELING
from atomsep.report import paper
from atomsep.report.groups import Group, Results, Row, group_results, is_share
from atomsep.report.markup import Cell, Section, Table, Value
from atomsep.report.numbers import NONE, interval_text, p_text, signed, spread_text
from atomsep.report.verdict import SIGNIFICANT

MAY_BE_EMPTY = (
    *("broke down", "paper", "paper's difference", "paper's best", "paper's average"),
    "other metrics",
)
"""Columns that are left out if they would be empty."""

BROKE_DOWN = (
    "Broke down: the discriminator's loss stayed near 0, the metric became ten times worse than "
    "before, or almost all modes were missing from the start. These runs count like all others; "
    "see broken_down in their result.json."
)

NOT_COMPARED = Comparison((), *(math.nan,) * 7)

Rows = list[tuple[Cell, ...]]


class Form(NamedTuple):
    """The columns of a table, and the note below it."""

    columns: tuple[str, ...]
    note: str


def build_tables(results: Results) -> list[Table]:
    """All tables that some results allow.

    One per family of the paper's experiments and one per other experiment, with tiny runs in
    tables of their own; then the significance table of the paper's appendix, and its ablation
    table.

    Args:
        results: results of finished runs; see `find_results`. Validation runs are left out.
    """
    groups = group_results([result for result in results if not result.get("validation", False)])
    tables = []
    for tiny in (False, True):
        of_form = [group for group in groups if group.tiny == tiny]
        for family in families(of_form):
            own = [group for group in of_form if group.experiment in family.experiments]
            tables.append(make_table(family.name, family.title, own, main_rows, MAIN))
        title = "Significance of the differences to the plain method"
        tables.append(make_table("significance", title, of_form, significance_rows, SIGNIFICANCE))
        title = "Atom modeling without its constraints"
        tables.append(make_table("ablation", title, of_form, ablation_rows, ABLATION))
    return [table for table in tables if table.sections]


def families(groups: Sequence[Group]) -> list[paper.Family]:
    """The families of some groups; an experiment without a family forms one of its own."""
    names = {group.experiment: group.title for group in groups}
    of_paper = [family for family in paper.FAMILIES if names.keys() & set(family.experiments)]
    placed = {name for family in of_paper for name in family.experiments}
    own = [paper.Family(name, names[name], (name,)) for name in names if name not in placed]
    return of_paper + own


def make_table(
    name: str,
    title: str,
    groups: Sequence[Group],
    rows_of: Callable[[Group], Rows],
    form: Form,
) -> Table:
    """A table with a section per group that has rows, and notes on changed settings."""
    parts = [(group, rows) for group in groups if (rows := rows_of(group))]
    groups = [group for group, _ in parts]
    if any(group.tiny for group in groups):
        name, title = f"{name}-tiny", f"{title}, tiny form (embedded data: a test, not a result)"
    kept = [
        column not in MAY_BE_EMPTY
        or any(row[place].text != NONE for _, rows in parts for row in rows)
        for place, column in enumerate(form.columns)
    ]
    sections = []
    for group, rows in parts:
        about: dict[str, Value] = {"experiment": group.experiment, "tiny": group.tiny}
        about |= {"changes": " ".join(group.changes), "metric": group.label}
        shown = [tuple(compress(row, kept)) for row in rows]
        sections.append(Section(heading(group, groups), shown, about))
    columns = tuple(compress(form.columns, kept))
    notes = (form.note, *([BROKE_DOWN] if "broke down" in columns else []), *changes_notes(groups))
    return Table(name, title, columns, tuple(sections), notes)


def heading(group: Group, groups: Sequence[Group]) -> str:
    """Experiment and metric, with the changed settings if they tell two groups apart."""
    text = f"{group.title}: {group.label}" + ("" if group.higher_is_better else ", less is better")
    if told_apart(group, groups):
        text += f" ({', '.join(group.changes) or 'the settings of the experiment'})"
    return text


def told_apart(group: Group, groups: Sequence[Group]) -> bool:
    """Whether groups of the same experiment have other settings."""
    changes = {other.changes for other in groups if other.experiment == group.experiment}
    return len(changes) > 1


def changes_notes(groups: Sequence[Group]) -> list[str]:
    """Settings that are not the experiment's defaults and that no heading or row shows."""
    notes: dict[str, None] = {}
    for group in groups:
        if group.changes and not told_apart(group, groups):
            notes[f"{group.title}: {', '.join(group.changes)}"] = None
        for row in group.rows:
            if not all(change in row.title for change in row.changes):
                notes[f"{group.title}, {row.title}: {', '.join(row.changes)}"] = None
    return [f"Settings other than the experiment's own. {'; '.join(notes)}."] if notes else []


MAIN = Form(
    (
        *("method", "result", "seeds", "broke down", "difference", "95 % interval", "p (t)"),
        *("p (Wilcoxon)", "paper", "paper's difference", "other metrics"),
    ),
    "Mean ± standard deviation over seeds; difference to the plain method, paired by seed, with "
    "its 95 % interval; p values two-sided, corrected by Holm for the number of methods.",
)


def main_rows(group: Group) -> Rows:
    """Mean, deviation, the paired comparison with the plain method, the paper's figures."""
    plain = _paper(group, "plain")
    rows: Rows = []
    for place, row in enumerate(group.rows):
        found = group.comparisons.get(place, NOT_COMPARED)
        mean, spread = row.mean, deviation(row.values.values())
        tie = " (tie)" if place in group.tied and len(group.tied) > 1 else ""
        seeds, paired = len(row.values), len(found.seeds)
        partly = f" ({paired} paired)" if place in group.comparisons and paired < seeds else ""
        printed = _paper(group, row.method)
        gap = None if printed is None or plain is None or row.method == "plain" else printed - plain
        rows.append(
            (
                name_cell(row),
                Cell(
                    spread_text(mean, spread) + tie,
                    {"mean": mean, "deviation": spread},
                    strong=place in group.tied,
                ),
                Cell(f"{seeds}{partly}", {"seeds": seeds, "paired_seeds": paired}),
                broken_cell(row),
                Cell(signed(found.difference), {"difference": found.difference}),
                Cell(interval_text(found.low, found.high), {"low": found.low, "high": found.high}),
                p_cell("p_t_holm", found.t_holm),
                p_cell("p_wilcoxon_holm", found.wilcoxon_holm),
                Cell(NONE if printed is None else f"{printed:g}", {"paper": printed}),
                Cell(signed(gap, 2), {"paper_difference": gap}),
                others_cell(row, percent="%" in group.label),
            )
        )
    return rows


def _paper(group: Group, method: str) -> float | None:
    if group.tiny:
        return None
    return paper.result(group.experiment, group.metric, method, group.rows[0].settings)


SIGNIFICANCE = Form(
    ("method", "p (t)", "Holm", "p (Wilcoxon)", "Holm", "paper"),
    "Two-sided, paired by seed. Holm: corrected for the number of methods. The paper does not say "
    "whether its p values are corrected.",
)


def significance_rows(group: Group) -> Rows:
    """P values before and after the correction."""
    printed = {} if group.tiny else paper.P_VALUES.get(group.experiment, {})
    return [
        (
            name_cell(group.rows[place]),
            p_cell("p_t", comparison.t),
            p_cell("p_t_holm", comparison.t_holm),
            p_cell("p_wilcoxon", comparison.wilcoxon),
            p_cell("p_wilcoxon_holm", comparison.wilcoxon_holm),
            p_cell("paper", printed.get(group.rows[place].method, math.nan)),
        )
        for place, comparison in group.comparisons.items()
        if not (math.isnan(comparison.t) and math.isnan(comparison.wilcoxon))
    ]


ABLATION = Form(
    ("method", "seeds", "best", "average", "paper's best", "paper's average"),
    "Differences to atom modeling with both constraints, below 0 if worse: best seed to best "
    "seed, and mean to mean.",
)


def ablation_rows(group: Group) -> Rows:
    """Differences between the ablations and atom modeling."""
    sign = 1 if group.higher_is_better else -1
    known = {} if group.tiny or group.metric != "fid" else paper.ABLATIONS
    rows: Rows = []
    for row in group.rows:
        whole = _with_constraints(group, row)
        if whole is None:
            continue
        ours, full = ([sign * v for v in each.values.values()] for each in (row, whole))
        best, mean = max(ours) - max(full), fmean(ours) - fmean(full)
        printed = known.get(group.experiment, {}).get(row.method, (None, None))
        rows.append(
            (
                name_cell(row),
                Cell(f"{len(ours)}", {"seeds": len(ours)}),
                Cell(signed(best), {"best": best}),
                Cell(signed(mean), {"average": mean}),
                Cell(signed(printed[0], 1), {"paper_best": printed[0]}),
                Cell(signed(printed[1], 1), {"paper_average": printed[1]}),
            )
        )
    return rows


def _with_constraints(group: Group, row: Row) -> Row | None:
    """Atom modeling's row to compare an ablation with: the one of its weight, or the only one."""
    if row.method == "atom" or row.method not in ATOM_MODELING:
        return None
    whole = [other for other in group.rows if other.method == "atom"]
    same = [other for other in whole if other.settings == row.settings]
    return same[0] if same else whole[0] if len(whole) == 1 else None


def name_cell(row: Row) -> Cell:
    """The method's title; in the CSV also its name and weight."""
    return Cell(row.title, {"method": row.method, "weight": row.settings.get("weight")})


def others_cell(row: Row, *, percent: bool) -> Cell:
    """Means of all metrics except the group's; in the CSV as recorded.

    Args:
        row: of a table.
        percent: whether shares are shown in percent, as the table's metric is.
    """
    means = {name: fmean(values.values()) for name, values in row.others.items()}
    shown = (
        f"{name} {100 * value:.2f} %" if percent and is_share(name) else f"{name} {value:.4g}"
        for name, value in means.items()
    )
    return Cell(", ".join(shown) or NONE, means)


def broken_cell(row: Row) -> Cell:
    """How many runs broke down, and which."""
    broken = row.broken_down
    text = f"{len(broken)} of {len(row.values)}: seed{'s' * (len(broken) > 1)} "
    text += ", ".join(map(str, broken))
    return Cell(text if broken else NONE, {"broken_down": len(broken)})


def p_cell(name: str, p: float) -> Cell:
    """A p value, in bold if it is significant."""
    return Cell(p_text(p), {name: p}, strong=p < SIGNIFICANT)
