"""The sections of a report: verdicts, charts, tables, samples and settings as HTML."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from atomsep.experiments.registry import EXPERIMENTS
from atomsep.report.charts import colour, curve_chart, differences_chart, seeds_chart
from atomsep.report.curves import Point, average_curves, read_lines
from atomsep.report.embedded import figures
from atomsep.report.groups import OF_A_METHOD, Group, assignments
from atomsep.report.html import Html, element, together
from atomsep.report.parts import Finished, Part
from atomsep.report.tables import build_tables
from atomsep.report.verdict import BETTER, OPEN, WORSE, shown_verdict

TINY = "Tiny form on embedded data: it shows that everything runs. The numbers mean nothing."
HOW_JUDGED = (
    "Better and worse: the paired t test over seeds gives p below 0.05 after Holm's correction for "
    "the number of methods. No difference shown: it does not. This does not prove that there is "
    "none: more seeds may show one."
)
LOSSES = {
    "method": "loss of the method",
    "cross-entropy": "cross-entropy loss",
    "discriminator": "loss of the discriminator",
    "generator": "loss of the generator",
}
"""Titles of the curves whose recorded names do not say that they are losses."""

FIRST_CURVES = 3
"""Charts of curves that are shown at once; the others are folded."""


def verdicts(parts: Sequence[Part]) -> Html:
    """What the seeds show, method by method."""
    found = []
    for part in parts:
        for place, group in enumerate(part.groups):
            less = "" if group.higher_is_better else ", less is better"
            plain = [row.title for row in group.rows if row.method == "plain"]
            against = f", against {plain[0]}" if plain and len(group.rows) > 1 else ""
            found.append(element("h3", f"{part.title}: {group.label}{against}{less}"))
            if group.tiny and place == 0:
                found.append(element("p", TINY, class_="warning"))
            found.append(_verdicts_of(group))
    return together(*found, element("p", HOW_JUDGED, class_="note"))


def _verdicts_of(group: Group) -> Html:
    rows = [(row.title, shown_verdict(group, place)) for place, row in enumerate(group.rows)]
    judged = [(title, found) for title, found in rows if found is not None]
    if not judged:
        plain = group.rows[0].method == "plain"
        why = "All runs are plain" if plain else "There is no plain run to compare with"
        return element("p", f"{why}.")
    order = {BETTER: 0, WORSE: 1, OPEN: 2}
    judged.sort(key=lambda each: order.get(each[1].word, len(order)))
    return element(
        "ul",
        *(
            element(
                "li",
                element("strong", title),
                " ",
                element("span", found.word, class_=f"verdict {found.word.split()[0]}"),
                f" {found.reason}.",
            )
            for title, found in judged
        ),
        class_="verdicts",
    )


def results(part: Part) -> Html:
    """Seeds and differences for every metric, training curves, and figures of the paper."""
    charts = [
        element("div", seeds_chart(group), differences_chart(group), class_="charts")
        for group in part.groups
    ]
    drawn = element("div", *figures(part), class_="pictures")
    return together(*charts, training_curves(part), drawn)


def training_curves(part: Part) -> Html:
    """A chart for each quantity that the runs recorded, with a legend for all."""
    rows = [average_curves(read_lines(run.folder) for run in runs) for runs in part.runs]
    names = list(dict.fromkeys(name for curves in rows for name in curves))
    shown = [group.metric for group in part.groups]
    measured = part.runs[0][0].result["metrics"]
    # What tables show, then the losses and what else was recorded in training, then other metrics.
    names.sort(key=lambda name: (name not in shown, name in measured))
    drawn = []
    for name in names:
        points = {n: curves[name] for n, curves in enumerate(rows) if name in curves}
        drawn.append(curve_chart(*_in_tables_unit(part, name, points)))
    if not drawn:
        return element("p", "The runs recorded no training curves.", class_="note")
    legend = element(
        "div",
        *(
            element(
                *("button", element("i", class_=colour(n)), row.title),
                type="button",
                data_row=n,
            )
            for n, row in enumerate(part.main.rows)
        ),
        class_="legend",
    )
    first = element("div", *drawn[:FIRST_CURVES], class_="charts curves")
    more = element(
        "details",
        element("summary", f"{len(drawn) - FIRST_CURVES} more curves"),
        element("div", *drawn[FIRST_CURVES:], class_="charts curves"),
    )
    note = "Training curves: mean over seeds, with a band from the least to the largest."
    folded = more if len(drawn) > FIRST_CURVES else Html("")
    return together(element("h3", "Training"), legend, first, folded, element("p", note))


def _in_tables_unit(
    part: Part, name: str, rows: dict[int, list[Point]]
) -> tuple[str, dict[int, list[Point]]]:
    """A quantity's title and points; metrics of the tables are scaled as there."""
    label = next((group.label for group in part.groups if group.metric == name), None)
    experiment = EXPERIMENTS.get(part.main.experiment)
    if label is None or experiment is None or not experiment.percent:
        return label or LOSSES.get(name, name.replace("_", " ")), rows
    scaled = {
        n: [Point(p.step, 100 * p.mean, 100 * p.low, 100 * p.high) for p in points]
        for n, points in rows.items()
    }
    return label, scaled


def tables(runs: Sequence[Finished]) -> Html:
    """All tables that the results allow."""
    found = build_tables([run.result for run in runs])
    return together(
        *(each for table in found for each in (element("h3", table.title), table.html()))
    )


def settings(part: Part) -> Html:
    """Settings of a part: those that its methods share, each method's own, and the versions."""
    first = part.runs[0][0].result
    shared = {k: v for k, v in first["settings"].items() if k not in OF_A_METHOD}
    changed = {change.partition("=")[0] for change in part.main.changes}
    pairs = [text.partition("=") for k, v in shared.items() for text in assignments(k, v)]
    rows = [
        element(
            "tr",
            element("th", name, scope="row"),
            element("td", element("strong", value) if name in changed else value),
        )
        for name, _, value in pairs
    ]
    note = "Bold: not the experiment's default." if changed else ""
    return element(
        "details",
        element("summary", part.title),
        element("div", _methods(part), class_="wide", tabindex=0),
        element("table", *rows, class_="settings"),
        *([element("p", note, class_="note")] if note else []),
        _made_with([run for runs in part.runs for run in runs]),
    )


def _methods(part: Part) -> Html:
    """Weight, options, seeds and time of each method."""
    columns = ("method", "weight and options", "seeds", "seconds per run")
    rows = []
    for row, runs in zip(part.main.rows, part.runs, strict=True):
        own = [t for name in OF_A_METHOD for t in assignments(name, row.settings.get(name, {}))]
        times = [run.result.get("seconds") for run in runs]
        known = [time for time in times if isinstance(time, int | float)]
        cells = (
            ", ".join(own) if row.method != "plain" else "",
            ", ".join(str(run.result["seed"]) for run in runs),
            f"{fmean(known):.3g}" if known else "",
        )
        name = element("th", row.title, scope="row")
        rows.append(element("tr", name, *(element("td", cell) for cell in cells)))
    head = element("tr", *(element("th", column, scope="col") for column in columns))
    return element("table", element("thead", head), element("tbody", *rows))


def _made_with(runs: Sequence[Finished]) -> Html:
    """Versions, commit and machine; each different one once."""
    kinds: dict[str, dict[str, None]] = {"versions": {}, "commit": {}, "machine": {}}
    for run in runs:
        for name, found in kinds.items():
            value = run.result.get(name)
            if isinstance(value, dict):
                value = ", ".join(f"{key} {each}" for key, each in value.items())
            if value:
                found[str(value)] = None
    terms = [
        part
        for name, found in kinds.items()
        for part in (element("dt", name), *(element("dd", text) for text in found))
        if found
    ]
    return element("dl", *terms)
