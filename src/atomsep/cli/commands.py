"""The command line: `atomsep train`, `sweep`, `table`, `list`.

The only place that parses arguments. What takes long to import is imported where it is used, so
that help comes quickly.
"""

from __future__ import annotations

import os
import sys
import traceback
from pathlib import Path
from typing import Annotated, Any

try:
    import typer
    from rich.console import Console
    from rich.table import Table
except ImportError as error:  # the core is installed without them
    raise SystemExit(
        f"the command line needs {error.name}; install it with: pip install 'atomsep[experiments]'"
    ) from None

from atomsep.cli.arguments import (
    Assignments,
    CheckpointSeconds,
    Data,
    Device,
    Devices,
    Download,
    ExperimentName,
    Out,
    Tiny,
    Workers,
    chosen_methods,
    chosen_seeds,
    default_workers,
)
from atomsep.experiments.errors import ExperimentError, unknown

FAILED, STOPPED = 1, 130
"""Exit codes: an error that was said in a sentence; interrupted, to go on with the same command."""

app = typer.Typer(
    name="atomsep",
    help="Train the experiments of atom modeling, and put the results into tables.\n\n"
    "Begin with `atomsep list`, then `atomsep train synthetic --tiny`.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    add_completion=False,
    pretty_exceptions_enable=False,
)


@app.callback()
def root(
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """Options of all commands; `--debug` is read by `main`."""


@app.command()
def train(
    experiment: ExperimentName,
    method: Annotated[str, typer.Option("--method", "-m", help="Name of the method.")] = "atom",
    seed: Annotated[int, typer.Option("--seed", "-s", min=0, help="Of data order, weights …")] = 0,
    set_: Assignments = None,
    tiny: Tiny = False,
    validation: Annotated[
        bool,
        typer.Option(
            "--validation", help="Evaluate on held-out training samples, not on the test samples."
        ),
    ] = False,
    out: Out = Path("runs"),
    data: Data = Path("data"),
    download: Download = False,
    device: Device = "auto",
    devices: Devices = 1,
    workers: Workers = None,
    checkpoint_seconds: CheckpointSeconds = 30.0,
) -> None:
    """Train one model with one method and one seed.

    Stopped or killed at any moment, the same command goes on from the last checkpoint and ends
    with the same result. A finished run is not trained again: its result is shown.

    Examples:
    - `atomsep train synthetic --method atom --seed 3`

    - `atomsep train flowers --method plain --set epochs=30 --download`

    - `atomsep train own-images --set folder=my/images --set weight=0.05`
    """
    from atomsep.cli.display import TrainingDisplay, say
    from atomsep.experiments.machine import Machine
    from atomsep.experiments.registry import find_experiment, run_key
    from atomsep.experiments.runs import Run
    from atomsep.experiments.training import StoppedError
    from atomsep.experiments.training import train as train_run

    # With several devices, the other processes are started with this variable.
    console = Console(quiet=os.environ.get("LOCAL_RANK", "0") != "0")
    chosen = find_experiment(experiment)
    key = run_key(chosen, method, seed, set_ or (), tiny=tiny, validation=validation)
    folder = key.folder(out)
    workers = default_workers(tiny) if workers is None else workers
    machine = Machine(device, devices, workers, data, download, checkpoint_seconds)
    finished = Run(folder).read_result() is not None
    if finished:
        say(
            console,
            f"This run is finished; to train it anew, for instance on changed data, remove "
            f"{folder}",
        )
        result = train_run(chosen, key, out, machine)
    else:
        try:
            with TrainingDisplay(console) as display:
                result = train_run(chosen, key, out, machine, display)
        except StoppedError:
            say(console, f"Stopped. The same command goes on from the checkpoint in {folder}")
            raise typer.Exit(STOPPED) from None
    table = Table("metric", "value", title=f"{chosen.title}, {method}, seed {seed}")
    for name, value in result["metrics"].items():
        table.add_row(name, f"{value:.4f}")
    console.print(table)
    if result["unreadable"]:
        first = result["unreadable"][0]
        say(
            console,
            f"{len(result['unreadable'])} samples could not be read and were left out, "
            f"{first} among them",
        )
    say(console, f"Everything is in {folder}")


@app.command()
def sweep(
    experiment: ExperimentName,
    methods: Annotated[
        str, typer.Option(help="Names with commas; by default all of the experiment's.")
    ] = "all",
    seeds: Annotated[
        str, typer.Option(help="How many from 0 on, or the seeds themselves: 5,7 or 5-9.")
    ] = "3",
    jobs: Annotated[int, typer.Option("--jobs", "-j", min=1, help="Runs at a time.")] = 1,
    search: Annotated[
        bool,
        typer.Option(
            "--search",
            help="First choose the learning rate by the plain method, then each method's weight, "
            "on held-out training samples. A rate that is set is held.",
        ),
    ] = False,
    search_seeds: Annotated[
        str, typer.Option(help="Seeds of the search; none of --seeds.")
    ] = "100-104",
    set_: Assignments = None,
    tiny: Tiny = False,
    out: Out = Path("runs"),
    data: Data = Path("data"),
    download: Download = False,
    device: Device = "auto",
    workers: Workers = None,
    checkpoint_seconds: CheckpointSeconds = 30.0,
) -> None:
    """Train all methods over several seeds, in parallel processes.

    What is finished is not trained again, and a run that fails stops no other: it is named at the
    end. Stopped or killed, the same command goes on.

    Examples:
    - `atomsep sweep synthetic --seeds 10 --jobs 2`

    - `atomsep sweep flowers --methods plain,atom --seeds 5 --search --download`
    """
    from atomsep.cli.display import SweepDisplay, say, search_table
    from atomsep.experiments.machine import Machine
    from atomsep.experiments.registry import find_experiment, run_key
    from atomsep.experiments.sweeps.search import search as search_settings
    from atomsep.experiments.sweeps.sweep import run_sweep
    from atomsep.experiments.training import StoppedError

    console = Console()
    chosen = find_experiment(experiment)
    names, numbers = chosen_methods(methods, chosen.methods), chosen_seeds(seeds)
    workers = default_workers(tiny) if workers is None else workers
    machine = Machine(device, 1, workers, data, download, checkpoint_seconds)
    assignments = list(set_ or ())
    changes = dict.fromkeys(names, assignments)
    lost: list[str] = []
    try:
        if search:
            with SweepDisplay(console, "searching") as display:
                found = search_settings(
                    *(chosen, names, out, machine, jobs, display),
                    seeds=chosen_seeds(search_seeds + ","),
                    reported=numbers,
                    assignments=assignments,
                    tiny=tiny,
                )
            console.print(search_table(found))
            for sentence in found.at_an_end(chosen):
                say(console, sentence)
            lost = [name for name in names if name != "plain" and name not in found.weights]
            names = [name for name in names if name not in lost]
            changes = {name: [*assignments, *found.assignments(name)] for name in names}
        trials = [
            run_key(chosen, name, seed, changes[name], tiny=tiny)
            for seed in numbers
            for name in names
        ]
        with SweepDisplay(console, "training") as display:
            report = run_sweep(trials, out, machine, jobs, display)
    except StoppedError:
        say(console, "Stopped. What was trained is kept; the same command goes on")
        raise typer.Exit(STOPPED) from None
    for failure in report.failed:
        say(
            console,
            f"Failed: {failure.key.method}, seed {failure.key.seed}: {failure.reason} "
            f"(all of it in {failure.log})",
        )
    if report.stopped:
        say(
            console,
            f"Stopped with {len(report.results)} of {len(trials)} runs finished; the same command "
            f"goes on with the others",
        )
        raise typer.Exit(STOPPED)
    if report.results:
        print_tables(report.results, "markdown")
        say(console, f"{len(report.results)} runs are in {out}; tables: atomsep table {out}")
    if lost:
        say(console, f"Left out, because every trial of their search failed: {', '.join(lost)}")
    if report.failed or lost:
        raise typer.Exit(FAILED)


@app.command()
def table(
    runs: Annotated[Path, typer.Argument(help="Folder of runs, or any folder within it.")],
    format: Annotated[
        str, typer.Option("--format", "-f", help="markdown, latex or csv.")
    ] = "markdown",
    out: Annotated[
        Path | None,
        typer.Option(help="Write each table to a file of its own here, in all three formats."),
    ] = None,
) -> None:
    """Put finished runs into tables, beside the paper's own figures.

    Mean and deviation over seeds; against the plain method the paired difference, its bootstrap
    interval, and the t and Wilcoxon tests with Holm's correction. The tables go to the standard
    output, or with `--out` into files.

    Examples:
    - `atomsep table runs`

    - `atomsep table runs/flowers --format latex > flowers.tex`
    """
    from atomsep.experiments.runs import find_results

    if format not in FORMATS:
        raise unknown("format", format, FORMATS)
    results = find_results(runs)
    if not results:
        raise ExperimentError(f"no run under {runs} is finished")
    if out is None:
        print_tables(results, format)
    else:
        write_tables(results, out)


FORMATS = {"markdown": ".md", "latex": ".tex", "csv": ".csv"}
"""Formats of tables, and how their files end."""


def write_tables(results: list[dict[str, Any]], folder: Path) -> None:
    """Each table of results in a file for each format."""
    from atomsep.cli.display import say
    from atomsep.experiments.runs import saying, write_whole
    from atomsep.report.tables import build_tables

    with saying(folder):
        folder.mkdir(parents=True, exist_ok=True)
    for each in build_tables(results):
        for format, ending in FORMATS.items():
            write_whole(folder / f"{each.name}{ending}", getattr(each, format)())
        say(Console(), f"{each.title}: {folder / each.name}.md, .tex, .csv")


def print_tables(results: list[dict[str, Any]], format: str) -> None:
    """The tables of results as text."""
    from atomsep.report.tables import build_tables

    print("\n\n".join(getattr(each, format)().rstrip() for each in build_tables(results)))


@app.command("list")
def list_(
    experiment: Annotated[str | None, typer.Argument(help="Show this one's settings.")] = None,
) -> None:
    """Show the experiments and methods, or the settings of one experiment."""
    from atomsep.experiments.registry import DEFAULT_WEIGHT, EXPERIMENTS, find_experiment
    from atomsep.experiments.settings import describe
    from atomsep.methods import METHODS

    console = Console()
    if experiment is None:
        table = Table("experiment", "what", "metric", title="Experiments")
        for each in EXPERIMENTS.values():
            table.add_row(each.name, each.summary, each.metric)
        console.print(table)
        table = Table("method", "what", title="Methods")
        for name, entry in METHODS.items():
            table.add_row(name, entry.summary)
        console.print(table)
        return
    chosen = find_experiment(experiment)
    title = f"{chosen.name}: {chosen.summary}"
    table = Table("setting", "default", "if --tiny", "meaning", title=title)
    for name, default, meaning in describe(chosen.settings):
        table.add_row(name, default, str(chosen.tiny.get(name, "")), meaning)
    console.print(table)
    table = Table("method", "weight", "what", title="Methods")
    for name in chosen.methods:
        weight = "" if name == "plain" else f"{chosen.weights.get(name, DEFAULT_WEIGHT):g}"
        what = chosen.plain if name == "plain" else METHODS[name].summary
        table.add_row(name, weight, what)
    console.print(table)


def main(arguments: list[str] | None = None) -> None:
    """Run the command line; errors are sentences, and exit codes tell them apart."""
    arguments = sys.argv[1:] if arguments is None else arguments
    debug = "--debug" in arguments
    arguments = [argument for argument in arguments if argument != "--debug"]
    try:
        app(arguments, standalone_mode=True)
    except ExperimentError as error:
        if debug:
            traceback.print_exc()
        print(f"atomsep: {error}", file=sys.stderr)
        raise SystemExit(FAILED) from None
    except KeyboardInterrupt:
        print("atomsep: stopped", file=sys.stderr)
        raise SystemExit(STOPPED) from None


if __name__ == "__main__":
    main()
