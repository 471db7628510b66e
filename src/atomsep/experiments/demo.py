"""The demo: the paper's Gaussian mixtures, with and without atom modeling.

`python -m atomsep.experiments.demo` trains a small classifier (see `mixtures`) with cross-entropy
alone and with atom modeling attached to its hidden layer, before the sigmoid, over ten paired
seeds: plain SGD of learning rate 0.3, 20 epochs of 2,000 samples in batches of 64. The weight of
12.5, which is 0.5 in the paper's sums, was chosen on other seeds (see `search`). It prints

    cross-entropy              94.43 ± 0.43
    atom modeling              95.30 ± 0.55
    best possible (Bayes)      95.96
    paired difference          +0.86
    95 % confidence interval   +0.68 to +1.05
    p value (paired t test)    2.2e-06

The learning rate is part of the setting and was not tuned. Tuned for cross-entropy first, as the
paper does, it would be 1, and the gain shrinks: with weight 2.5 these ten seeds gave 95.24 and
95.43, a difference of +0.19 (p = 0.09; `--learning-rate 1 --weight 2.5`). That was the first
setting tried on these seeds, so they were looked at twice. `search` shows where the gain is gone.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from atomsep.experiments.figures import write_figures
from atomsep.experiments.mixtures import bayes_rate
from atomsep.experiments.results import (
    Comparison,
    SeedResult,
    Store,
    UnreadableResultsError,
    write_tables,
)
from atomsep.experiments.search import neighbours, search, spread
from atomsep.experiments.training import METHODS, Setting, train


def train_seeds(store: Store, setting: Setting, seeds: Sequence[int], console: Console) -> None:
    """Train both methods on every seed that is not finished yet; each is kept as it ends."""
    missing = [seed for seed in seeds if seed not in store.finished]
    if not missing:
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeElapsedColumn(), console=console) as progress:
        total = len(missing) * len(METHODS) * setting.epochs
        bar = progress.add_task("training", total=total)
        for seed in missing:
            trained = {}
            for method in METHODS:
                progress.update(bar, description=f"seed {seed}, {method}")
                trained[method] = train(setting, seed, method, lambda: progress.advance(bar))
            store.add(SeedResult.of(seed, trained))
        progress.update(bar, description=f"{counted(len(missing))} trained")


def counted(number: int, thing: str = "seed") -> str:
    """A number with its noun.

    Example:
        >>> counted(1), counted(2)
        ('1 seed', '2 seeds')
    """
    return f"{number} {thing}{'' if number == 1 else 's'}"


def accuracy_table(results: Sequence[SeedResult], comparison: Comparison, bayes: float) -> Table:
    """Mean ± standard deviation by method, and the paired difference."""
    title = f"Gaussian mixtures, {counted(len(results), 'paired seed')}"
    table = Table("method", "test accuracy, %", title=title)
    for method in METHODS:
        table.add_row(method, spread([result.accuracy[method] for result in results]))
    table.add_row("best possible (Bayes)", f"{100 * bayes:.2f}", style="dim", end_section=True)
    table.add_row("paired difference", f"{100 * comparison.difference:+.2f}", style="bold")
    if not math.isnan(comparison.low):
        interval = f"{100 * comparison.low:+.2f} to {100 * comparison.high:+.2f}"
        table.add_row("95 % confidence interval", interval)
        table.add_row("p value (paired t test)", f"{comparison.p_value:.2g}")
    return table


def run(out: Path, setting: Setting, seeds: Sequence[int], fresh: bool, console: Console) -> int:
    """Train, print the table, write tables and figures; returns the exit status."""
    store = Store(out, setting, fresh=fresh)
    known = [seed for seed in seeds if seed in store.finished]
    if known:
        say(
            console,
            f"{len(known)} of {len(seeds)} seeds were finished before with this configuration and "
            f"are used again (--fresh trains them anew)",
        )
    stopped = False
    try:
        train_seeds(store, setting, seeds, console)
    except KeyboardInterrupt:
        stopped = True
    results = [store.finished[seed] for seed in seeds if seed in store.finished]
    if results:
        bayes = bayes_rate()
        comparison = write_tables(out, setting, results, bayes)
        console.print(accuracy_table(results, comparison, bayes))
    if stopped:
        say(
            console,
            f"Stopped after {len(results)} of {len(seeds)} seeds. They are kept in {store.path}; "
            f"the same command goes on from there",
        )
        return 130
    figures = write_figures(out, setting, results, bayes)
    names = ", ".join(path.name for path in (out / "results.csv", out / "results.json", *figures))
    say(console, f"Written to {out}: {names}")
    return 0


def say(console: Console, sentence: str) -> None:
    """Print a sentence as it is: no markup, no colours, no line breaks within paths."""
    console.print(sentence, markup=False, highlight=False, soft_wrap=True)


def at_least(
    kind: Callable[[str], float], low: float, *, above: bool = False
) -> Callable[[str], float]:
    """An argument's type: a finite number with a lower bound."""

    def parse(text: str) -> float:
        try:
            value = kind(text)
        except ValueError:
            raise argparse.ArgumentTypeError(
                f"must be a {'whole ' if kind is int else ''}number, not {text!r}"
            ) from None
        if not math.isfinite(value) or value < low or (above and value == low):
            bound = "above" if above else "at least"
            raise argparse.ArgumentTypeError(f"must be {bound} {low:g}, not {text}")
        return value

    return parse


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    default = Setting()
    description = "Train the paper's Gaussian mixtures with and without atom modeling."
    parser = argparse.ArgumentParser(
        prog="python -m atomsep.experiments.demo", description=description
    )
    count, positive = at_least(int, 1), at_least(float, 0, above=True)
    add = parser.add_argument
    add("--out", type=Path, default=Path("demo"), help="folder for results and figures")
    add("--seeds", type=count, default=10, help="how many paired seeds")
    add("--epochs", type=count, default=default.epochs)
    add("--samples", type=at_least(int, 2), default=default.train_samples, help="to train on")
    add("--learning-rate", type=positive, default=default.learning_rate)
    add("--weight", type=at_least(float, 0), default=default.weight, help="of the atom loss")
    add("--fresh", action="store_true", help="forget finished seeds")
    add("--search", action="store_true", help="choose the weight on validation seeds, two minutes")
    add("--neighbours", action="store_true", help="try other settings on them, ten minutes")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    options = parse_arguments(arguments)
    console = Console()
    setting = replace(
        Setting(),
        epochs=options.epochs,
        train_samples=options.samples,
        learning_rate=options.learning_rate,
        weight=options.weight,
    )
    try:
        if options.search:
            search(setting, console)
        if options.neighbours:
            neighbours(setting, console)
        if options.search or options.neighbours:
            return 0
        return run(options.out, setting, range(options.seeds), options.fresh, console)
    except (OSError, UnreadableResultsError) as error:
        say(Console(stderr=True), f"The demo cannot go on: {error}")
        return 1
    except KeyboardInterrupt:
        say(console, "Stopped.")
        return 130


if __name__ == "__main__":
    sys.exit(main())
