"""The commands: `atomsep train`, `sweep`, `list`; more in `reporting`, `explaining`, `layering`.

Everything that is slow to import is imported where it is used, after the arguments were checked,
so that help and refusals come at once.
"""

from __future__ import annotations

import os
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import typer

import atomsep
from atomsep.cli import arguments, display, explaining, judging, layering, reporting, tables
from atomsep.cli.arguments import chosen_methods, chosen_search_seeds, chosen_seeds, chosen_workers
from atomsep.cli.flags import Command, Group
from atomsep.cli.main import FAILED, STOPPED
from atomsep.experiments.entry_points import import_extensions
from atomsep.experiments.errors import ExperimentError, StoppedError
from atomsep.experiments.machine import Machine
from atomsep.experiments.runs import Run

app = typer.Typer(
    name="atomsep",
    cls=Group,
    help="Train the experiments of atom modeling, and put the results into tables.\n\n"
    "Start with `atomsep list`, then `atomsep train synthetic --tiny`.",
    rich_markup_mode="markdown",
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"atomsep {atomsep.__version__}")
        raise typer.Exit


@app.callback()
def root(
    import_: Annotated[
        list[str] | None,
        typer.Option(
            "--import",
            metavar="MODULE",
            help="Import a module that registers your own experiments or methods; may be "
            "repeated. It is looked for in the current folder too.",
        ),
    ] = None,
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version.", callback=_print_version, is_eager=True
        ),
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """Options of all commands; `--debug` is read by `main`."""
    import_extensions(import_ or ())


@app.command(cls=Command)
def train(
    experiment: arguments.ExperimentName,
    method: Annotated[str, typer.Option("--method", "-m", help="Name of the method.")] = "atom",
    seed: Annotated[int, typer.Option("--seed", "-s", min=0, help="Random seed.")] = 0,
    set_: arguments.Assignments = None,
    tiny: arguments.Tiny = False,
    validation: Annotated[
        bool,
        typer.Option(
            "--validation", help="Evaluate on held-out training samples, not on the test samples."
        ),
    ] = False,
    out: arguments.Out = Path("runs"),
    data: arguments.Data = Path("data"),
    download: arguments.Download = False,
    device: arguments.Device = "auto",
    devices: arguments.Devices = 1,
    workers: arguments.Workers = None,
    data_on: arguments.DataOn = "auto",
    checkpoint_seconds: arguments.CheckpointSeconds = 30.0,
) -> None:
    """Train one model with one method and one seed.

    If it is stopped or killed at any moment, the same command continues from the last checkpoint
    and ends with the same result. A finished run is not trained again: its result is shown.

    Examples:
    - `atomsep train synthetic --method atom --seed 3`

    - `atomsep train flowers --method plain --set epochs=30 --download`

    - `atomsep train own-images --set folder=my/images --set weight=0.05`
    """
    from atomsep.experiments.registry import check, find_experiment, run_key

    # With several devices, the other processes are started with this variable.
    console = display.make_console(quiet=os.environ.get("LOCAL_RANK", "0") != "0")
    chosen = find_experiment(experiment)
    key = run_key(chosen, method, seed, set_ or (), tiny=tiny, validation=validation)
    folder = key.folder(out)
    workers = chosen_workers(workers, tiny)
    machine = Machine(device, devices, workers, data, download, checkpoint_seconds, data_on=data_on)
    result = Run(folder).read_result()
    if result is not None:
        console.say(f"This run is finished. To train it again, remove {folder}")
    else:
        check(chosen, key)
        from atomsep.experiments.training import train as train_run

        try:
            with display.TrainingDisplay(console) as shown:
                result = train_run(chosen, key, out, machine, shown)
        except StoppedError:
            console.say(f"Stopped. The same command continues from the checkpoint in {folder}")
            raise SystemExit(STOPPED) from None
    title = f"{chosen.title}, {method}, seed {seed}"
    metrics = [(name, f"{value:.4f}") for name, value in result["metrics"].items()]
    tables.show(console, title, ("metric", "value"), metrics)
    if result.get("broken_down"):
        console.say(f"The training broke down: {result['broken_down']}")
    unreadable = result["unreadable"]
    if unreadable:
        samples = display.counted(len(unreadable), "unreadable sample")
        console.say(f"The run left out {samples}, for example {unreadable[0]}")
    console.say(f"All files are in {folder}")


@app.command(cls=Command)
def sweep(
    experiment: arguments.ExperimentName,
    methods: Annotated[
        str,
        typer.Option(
            help="Names of methods, separated by commas; by default all of the experiment's."
        ),
    ] = "all",
    seeds: Annotated[
        str, typer.Option(help="Number of seeds, or the seeds themselves: 5,7 or 5-9.")
    ] = "3",
    jobs: arguments.Jobs = 1,
    mps: arguments.Mps = False,
    executor: arguments.Executor = "local",
    search: arguments.Search = False,
    search_seeds: arguments.SearchSeeds = "100-104",
    set_: arguments.Assignments = None,
    tiny: arguments.Tiny = False,
    out: arguments.Out = Path("runs"),
    data: arguments.Data = Path("data"),
    download: arguments.Download = False,
    device: arguments.Device = "auto",
    workers: arguments.Workers = None,
    data_on: arguments.DataOn = "auto",
    checkpoint_seconds: arguments.CheckpointSeconds = 30.0,
) -> None:
    """Train several methods over several seeds, in parallel processes.

    Finished runs are not trained again, and a run that fails does not stop the others: it is named
    at the end. If the sweep is stopped or killed, the same command continues it.

    Examples:
    - `atomsep sweep synthetic --seeds 10 --jobs auto`

    - `atomsep sweep flowers --methods plain,atom --seeds 5 --search --download`
    """
    from atomsep.experiments.registry import check, find_experiment, run_key
    from atomsep.experiments.sweeps.mps import share_gpu
    from atomsep.experiments.sweeps.search import search as search_settings
    from atomsep.experiments.sweeps.sweep import run_sweep

    console = display.make_console()
    chosen = find_experiment(experiment)
    names, numbers = chosen_methods(methods, chosen.methods), chosen_seeds(seeds)
    held_out = chosen_search_seeds(search_seeds)
    workers = chosen_workers(workers, tiny)
    machine = Machine(device, 1, workers, data, download, checkpoint_seconds, data_on=data_on)
    if mps and executor != "local":
        raise ExperimentError(f"--mps shares a GPU of this machine; omit it with {executor}")
    assignments = list(set_ or ())
    asked = [run_key(chosen, n, s, assignments, tiny=tiny) for s in numbers for n in names]
    if not all(Run(key.folder(out)).read_result() for key in asked):
        check(chosen, asked[0])  # the settings are those of all
    changes = dict.fromkeys(names, assignments)
    lost: list[str] = []
    try:
        with share_gpu(device) if mps else nullcontext():
            if search:
                with display.SweepDisplay(console, "searching") as shown:
                    found = search_settings(
                        *(chosen, names, out, machine, jobs, shown),
                        seeds=held_out,
                        reported=numbers,
                        assignments=assignments,
                        tiny=tiny,
                        executor=executor,
                    )
                display.show_search(console, found)
                lost = [name for name in names if name != "plain" and name not in found.weights]
                names = [name for name in names if name not in lost]
                changes = {name: [*assignments, *found.assignments(name)] for name in names}
            trials = [
                run_key(chosen, name, seed, changes[name], tiny=tiny)
                for seed in numbers
                for name in names
            ]
            with display.SweepDisplay(console, "training") as shown:
                report = run_sweep(trials, out, machine, jobs, shown, executor)
    except StoppedError:
        console.say("Stopped. Finished runs are kept; the same command continues")
        raise SystemExit(STOPPED) from None
    for failure in report.failed:
        console.say(
            f"Failed: {failure.key.method}, seed {failure.key.seed}: {failure.reason} "
            f"(details in {failure.log})"
        )
    if report.stopped:
        console.say(
            f"Stopped with {len(report.results)} of {len(trials)} runs finished; the same command "
            f"continues with the others"
        )
        raise SystemExit(STOPPED)
    if report.results:
        tables.print_tables(report.results)
        runs = display.counted(len(report.results), "run")
        more = f"tables: atomsep table {out}; on one page: atomsep report {out}"
        console.say(f"Finished: {runs} in {out}; {more}")
    if lost:
        console.say(f"Left out, because every trial of their search failed: {', '.join(lost)}")
    if report.failed or lost:
        raise SystemExit(FAILED)


app.command(cls=Command)(reporting.table)
app.command(cls=Command)(reporting.figures)
app.command(cls=Command)(reporting.report)
app.command(cls=Command)(explaining.explain)
app.command(cls=Command)(judging.faithful)
app.command(cls=Command)(layering.layers)


@app.command("list", cls=Command)
def list_(
    experiment: Annotated[str | None, typer.Argument(help="Show the settings of this one.")] = None,
) -> None:
    """Show all experiments and methods, or the settings of one experiment."""
    from atomsep.experiments.registry import DEFAULT_WEIGHT, EXPERIMENTS, find_experiment
    from atomsep.experiments.settings import describe
    from atomsep.methods import METHODS

    console = display.make_console()
    if experiment is None:
        rows = [(each.name, each.summary, each.metric) for each in EXPERIMENTS.values()]
        tables.show(console, "Experiments", ("experiment", "what", "metric"), rows)
        known = [(name, entry.summary) for name, entry in METHODS.items()]
        tables.show(console, "Methods", ("method", "what"), known)
        return
    chosen = find_experiment(experiment)
    title = f"{chosen.name}: {chosen.summary}"
    settings = [
        (name, default, str(chosen.tiny.get(name, "")), meaning)
        for name, default, meaning in describe(chosen.settings)
    ]
    tables.show(console, title, ("setting", "default", "with --tiny", "meaning"), settings)
    methods = []
    for name in chosen.methods:
        weight = "" if name == "plain" else f"{chosen.weights.get(name, DEFAULT_WEIGHT):g}"
        what = chosen.plain if name == "plain" else METHODS[name].summary
        methods.append((name, weight, what))
    tables.show(console, "Methods", ("method", "weight", "what"), methods)
