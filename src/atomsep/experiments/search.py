"""How the demo's weight was chosen, and where atom modeling does not help.

Everything here runs on validation seeds, none of which the demo reports. The grid of weights is
the paper's (its sums over five tokens make its weights 25 times smaller than ours of means).
`--search` of the demo (two minutes) printed, in per cent of the validation samples:

    cross-entropy   94.36 ± 0.37
    weight 0.125    94.37 ± 0.41   +0.01 (p = 0.8)
    weight 0.25     94.49 ± 0.39   +0.13 (p = 0.004)
    weight 0.5      94.66 ± 0.37   +0.30 (p = 2e-07)
    weight 1.25     94.91 ± 0.34   +0.55 (p = 3e-10)
    weight 2.5      95.11 ± 0.31   +0.75 (p = 4e-11)
    weight 5        95.02 ± 0.88   +0.66 (p = 0.003)
    weight 12.5     95.19 ± 0.43   +0.83 (p = 8e-08)     chosen

`--neighbours` (ten minutes) printed the paired difference for three weights:

    setting              cross-entropy   0.5                  2.5                  12.5
    the demo's           94.36 ± 0.37    +0.30 (p = 2e-07)    +0.75 (p = 4e-11)    +0.83 (p = 8e-08)
    learning rate 1      95.19 ± 0.60    +0.16 (p = 0.001)    -0.11 (p = 0.8)      -0.59 (p = 0.3)
    learning rate 3      94.83 ± 1.75    -1.38 (p = 0.1)      -1.16 (p = 0.03)     -2.89 (p = 0.02)
    60 epochs            95.48 ± 0.13    +0.15 (p = 5e-10)    +0.29 (p = 3e-13)    +0.22 (p = 1e-05)
    4, decaying to 0     95.88 ± 0.09    -0.15 (p = 0.0002)   -0.13 (p = 6e-05)    -0.17 (p = 8e-05)
    Adam 0.03            95.70 ± 0.18    +0.03 (p = 0.09)     -0.03 (p = 0.4)      -0.30 (p = 0.002)
    relu, rate 0.1       91.96 ± 0.59    +0.14 (p = 0.03)     +0.29 (p = 0.4)      -0.85 (p = 0.4)

So on this task atom modeling closes much of the gap to the best possible 95.96 where plain SGD is
slow to reach it, and none of it where the optimiser gets there alone: the gain is one of speed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from statistics import mean, stdev

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from atomsep.experiments.results import compare
from atomsep.experiments.training import METHODS, Setting, train

VALIDATION_SEEDS = range(100, 120)
WEIGHTS = (0.125, 0.25, 0.5, 1.25, 2.5, 5.0, 12.5)

NEIGHBOURS: dict[str, dict[str, object]] = {
    "the demo's setting": {},
    "learning rate 1": {"learning_rate": 1.0},
    "learning rate 3": {"learning_rate": 3.0},
    "60 epochs": {"epochs": 60},
    "learning rate 4, decaying to 0": {"learning_rate": 4.0, "decay": True},
    "Adam, learning rate 0.03": {"optimiser": "adam", "learning_rate": 0.03},
    "relu, learning rate 0.1": {"activation": "relu", "learning_rate": 0.1},
}
"""Settings around the demo's, by what they change."""

NEIGHBOUR_WEIGHTS = (0.5, 2.5, 12.5)

Evaluate = Callable[[Setting, str], list[float]]


@contextmanager
def evaluation(console: Console, runs: int) -> Iterator[Evaluate]:
    """A function that trains over all validation seeds, with one progress bar for `runs` calls."""
    with Progress(console=console, transient=True) as progress:
        bar = progress.add_task("", total=runs * len(VALIDATION_SEEDS))

        def evaluate(setting: Setting, method: str) -> list[float]:
            accuracies = []
            for seed in VALIDATION_SEEDS:
                accuracies.append(train(setting, seed, method).accuracy)
                progress.advance(bar)
            return accuracies

        yield evaluate


def search(base: Setting, console: Console) -> Setting:
    """Choose the weight on the validation seeds, and print every trial.

    Args:
        base: what is not searched for.
        console: where to print.

    Returns:
        The base with the weight of the best mean accuracy.
    """
    baseline, with_atoms = METHODS
    with evaluation(console, 1 + len(WEIGHTS)) as evaluate:
        plain = evaluate(base, baseline)
        by_weight = {
            weight: evaluate(replace(base, weight=weight), with_atoms) for weight in WEIGHTS
        }
    best = max(by_weight, key=lambda weight: mean(by_weight[weight]))

    title = f"Validation: {len(VALIDATION_SEEDS)} paired seeds"
    table = Table("weight", "accuracy, %", "paired difference", title=title)
    table.add_row(baseline, spread(plain), end_section=True)
    for weight, accuracies in by_weight.items():
        style = "bold" if weight == best else None
        table.add_row(f"{weight:g}", *against(plain, accuracies), style=style)
    console.print(table)
    console.print(f"Chosen: weight {best:g}")
    return replace(base, weight=best)


def neighbours(base: Setting, console: Console) -> None:
    """Print what atom modeling does in settings around the base, on the validation seeds."""
    baseline, with_atoms = METHODS
    columns = [f"weight {weight:g}" for weight in NEIGHBOUR_WEIGHTS]
    table = Table("setting", baseline, *columns, title="Validation: around the demo's setting")
    with evaluation(console, len(NEIGHBOURS) * (1 + len(columns))) as evaluate:
        for name, changes in NEIGHBOURS.items():
            setting = replace(base, **changes)  # type: ignore[arg-type]
            plain = evaluate(setting, baseline)
            cells = [
                against(plain, evaluate(replace(setting, weight=weight), with_atoms))[1]
                for weight in NEIGHBOUR_WEIGHTS
            ]
            table.add_row(name, spread(plain), *cells)
    console.print(table)


def spread(accuracies: list[float]) -> str:
    """Mean ± standard deviation in per cent.

    Example:
        >>> spread([0.94, 0.96])
        '95.00 ± 1.41'
    """
    deviation = f" ± {100 * stdev(accuracies):.2f}" if len(accuracies) > 1 else ""
    return f"{100 * mean(accuracies):.2f}{deviation}"


def against(plain: list[float], accuracies: list[float]) -> tuple[str, str]:
    """Mean ± deviation, and the paired difference with its p value."""
    result = compare(plain, accuracies)
    return spread(accuracies), f"{100 * result.difference:+.2f} (p = {result.p_value:.1g})"
