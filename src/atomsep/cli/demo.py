"""The demo: the paper's Gaussian mixtures with the paper's methods, over paired seeds.

`python -m atomsep.cli.demo` sweeps the experiment "synthetic" in two processes, as `atomsep sweep
synthetic --methods … --seeds 10 --jobs 2` does, prints the paired comparison beside the best
possible accuracy, and writes the table, the accuracies, the figures, and a report that opens in a
browser. If it is stopped, the same command continues.
"""

from __future__ import annotations

import argparse
import csv
import io
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from rich.table import Table

from atomsep.cli.arguments import MOST_SEEDS
from atomsep.cli.display import SafeConsole, SweepDisplay, counted, make_console
from atomsep.cli.main import FAILED, STOPPED
from atomsep.experiments.errors import ExperimentError
from atomsep.experiments.files import write_text
from atomsep.experiments.machine import Machine
from atomsep.experiments.registry import run_key
from atomsep.experiments.runs import RunKey
from atomsep.experiments.sweeps.comparison import deviation
from atomsep.experiments.sweeps.ledger import SweepReport
from atomsep.experiments.sweeps.sweep import run_sweep
from atomsep.experiments.synthetic.experiment import SYNTHETIC
from atomsep.report.groups import Group, group_results
from atomsep.report.numbers import NONE, interval_text, p_text, signed, spread_text
from atomsep.report.tables import build_tables
from atomsep.report.verdict import BETTER, OPEN, WORSE, verdict

METHODS = (
    *("plain", "hinge-1", "hinge-2", "rank-h", "simclr", "atom"),
    *("atom-no-neutrality", "atom-no-occupancy", "atom-no-constraints"),
)
"""Those of the paper's figure, and its ablations."""

UNTUNED = (
    "The learning rate is not tuned here. With a tuned one this gain all but disappears: see "
    "docs/results/settings.md"
)


def accuracy_table(group: Group, bayes: float) -> Table:
    """Every method compared with cross-entropy, and the best possible accuracy."""
    from atomsep.report.style import label_of, on_one_line

    title = f"{group.title}, {counted(len(group.rows[0].values), 'seed')}"
    table = Table("method", title=title)
    for column in ("accuracy, %", "paired difference", "p (t)"):
        table.add_column(column, justify="right", no_wrap=True)
    for place, row in enumerate(group.rows):
        values, found = row.values.values(), group.comparisons.get(place)
        cells = [spread_text(fmean(values), deviation(values))]
        if found is not None:
            interval = interval_text(found.low, found.high)
            beside = "" if interval == NONE else f" ({interval})"
            cells += [signed(found.difference) + beside, p_text(found.t_holm)]
        style = "bold" if place in group.tied else None
        table.add_row(on_one_line(label_of(row.method)), *cells, style=style)
    table.add_section()
    table.add_row("best possible (Bayes)", f"{100 * bayes:.2f}", style="dim")
    return table


def write_files(out: Path, report: SweepReport, keys: Sequence[RunKey]) -> list[Path]:
    """Write accuracies as CSV, tables as Markdown, figures and the report; returns the files."""
    from atomsep.report.figures import write_figures
    from atomsep.report.page import write_report

    accuracies: dict[str, dict[int, float]] = {method: {} for method in METHODS}
    for result in report.results:
        accuracies[result["method"]][result["seed"]] = result["metrics"]["accuracy"]
    accuracies = {method: values for method, values in accuracies.items() if values}
    rows = io.StringIO()
    writer = csv.writer(rows, lineterminator="\n")
    writer.writerow(["seed", *accuracies])
    for seed in sorted({key.seed for key in keys}):
        writer.writerow([seed, *(values.get(seed, "") for values in accuracies.values())])
    write_text(out / "results.csv", rows.getvalue())
    tables = "\n".join(table.markdown() for table in build_tables(report.results))
    write_text(out / "tables.md", tables)
    write_figures(out / "runs", out / "figures")
    write_report(out / "runs", out / "report.html")
    return [out / name for name in ("results.csv", "tables.md", "figures", "report.html")]


def of_complete_seeds(
    results: Sequence[dict[str, Any]], keys: Sequence[RunKey]
) -> list[dict[str, Any]]:
    """Results of the seeds that all methods have finished, so that rows are comparable."""
    methods = len({key.method for key in keys})
    seeds = [result["seed"] for result in results]
    return [result for result in results if seeds.count(result["seed"]) == methods]


def run(out: Path, keys: Sequence[RunKey], jobs: int, console: SafeConsole) -> int:
    """Train, print the table, write the files; returns the exit status."""
    from atomsep.experiments.synthetic.mixtures import bayes_rate

    machine = Machine(device="cpu", tensorboard=False)
    with SweepDisplay(console, "training") as display:
        report = run_sweep(keys, out / "runs", machine, jobs, display)
    bayes = bayes_rate()
    complete = of_complete_seeds(report.results, keys)
    if complete:
        console.print(accuracy_table(group_results(complete)[0], bayes))
    if report.stopped:
        console.say(
            f"Stopped with {len(report.results)} of {len(keys)} runs finished. They are kept in "
            f"{out / 'runs'}; the same command continues from there"
        )
        return STOPPED
    for failure in report.failed:
        who = f"{failure.key.method}, seed {failure.key.seed}"
        console.say(f"{who} failed: {failure.reason} (details in {failure.log})")
    if not report.results:
        return FAILED
    if report.skipped:
        console.say(f"{report.skipped} of {counted(len(keys), 'run')} were finished before")
    *others, page = write_files(out, report, keys)
    console.say(f"Written to {out}: {', '.join(path.name for path in others)}")
    console.say(what_happened(group_results(report.results)[0]))
    console.say(f"The report, for a browser: {page.resolve()}")
    return FAILED if report.failed else 0


def what_happened(group: Group) -> str:
    """The verdict on atom modeling in a sentence."""
    place = next((n for n, row in enumerate(group.rows) if row.method == "atom"), None)
    found = None if place is None else verdict(group, place)
    if found is None:
        return "Atom modeling cannot be compared with cross-entropy: one of them has no run"
    said = {
        BETTER: "did better than",
        WORSE: "did worse than",
        OPEN: "showed no difference to",
    }.get(found.word, "could not be tested against")
    return f"Atom modeling {said} cross-entropy in {group.label}: {found.reason}. " + (
        "The tiny form is a test: its numbers mean nothing" if group.tiny else UNTUNED
    )


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m atomsep.cli.demo",
        description="Train the paper's Gaussian mixtures with the paper's methods.",
    )
    parser.add_argument("--out", type=Path, default=Path("demo"), help="folder for all files")
    parser.add_argument("--seeds", type=_count, default=10, help="number of paired seeds")
    parser.add_argument("--jobs", type=_count, default=2, help="number of runs at a time")
    parser.add_argument("--tiny", action="store_true", help="few samples and epochs: seconds")
    return parser.parse_args(arguments)


def _count(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= MOST_SEEDS:
        raise argparse.ArgumentTypeError(
            f"must be a whole number from 1 to {MOST_SEEDS}, not {text!r}"
        )
    return int(text)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    options = parse_arguments(arguments)
    keys = [
        run_key(SYNTHETIC, method, seed, tiny=options.tiny)
        for seed in range(options.seeds)
        for method in METHODS
    ]
    try:
        return run(options.out, keys, options.jobs, make_console())
    except (ExperimentError, OSError) as error:
        make_console(stderr=True).say(f"The demo cannot continue: {error}")
        return FAILED
    except KeyboardInterrupt:
        make_console().say("Stopped.")
        return STOPPED


if __name__ == "__main__":
    sys.exit(main())
