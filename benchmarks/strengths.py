"""Which rule for the strength of atom modeling carries over from task to task.

    python -m benchmarks.strengths --data DATA --tasks digits mnist flowers
    python -m benchmarks.strengths --collect
    python -m benchmarks.strengths --table

The rules are those of `benchmarks.rules`. For each task, plain training is tuned first, on
validation data and seeds of its own. Then every rule is trained at three strengths, the same in
every task, on the same five seeds as plain training. The criterion was fixed before the runs: a
rule's worst mean paired difference to plain over all tasks, then its mean over them.

Runs are kept in `--out` and never trained twice; `--collect` reads the finished ones into
`results/strengths.csv`, one row per run, and `--table` compares them.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

from atomsep.experiments.entry_points import import_extensions
from atomsep.experiments.machine import Machine
from atomsep.experiments.registry import find_experiment, run_key
from atomsep.experiments.runs import Run, RunKey
from atomsep.experiments.sweeps.comparison import compare
from atomsep.experiments.sweeps.ledger import Event
from atomsep.experiments.sweeps.mps import share_gpu
from atomsep.experiments.sweeps.sweep import run_sweep
from benchmarks import record

SEEDS = range(5)
TUNING_SEEDS = range(100, 103)


@dataclass(frozen=True)
class Task:
    """A task that the rules are tried on.

    Attributes:
        experiment: its name.
        steps: in a run, for the rules that rise or fall.
        metrics: names of the metrics to compare; the first decides.
        settings: the same for all runs.
        tuned: the setting of plain training that is chosen, and its values.
        sign: 1 if more is better, -1 if less is.
    """

    experiment: str
    steps: int
    metrics: tuple[str, ...]
    settings: tuple[str, ...]
    tuned: tuple[str, tuple[float, ...]]
    sign: int = -1


GAN = ("frechet_classifier", "ema_frechet_classifier", "recall", "ema_recall")
RATES = "learning_rate", (1e-4, 2e-4, 4e-4)
MNIST = (
    *("precision=bf16-mixed", "features=classifier", "batch=128", "graph=true"),
    *("epochs=5", "evaluate_every=469", "average_last=2"),
)
DECAYS = "weight_decay", (5e-4, 2e-3, 5e-3, 1e-2, 2e-2)
CLASSIFIER = ("precision=bf16-mixed", "graph=true", "evaluate_every=0", "image=64")
TASKS = {
    "digits": Task(
        *("digits-gan", 2320, GAN, ("graph=true",)), ("learning_rate", (2e-4, 5e-4, 1e-3))
    ),
    "mnist": Task("mnist-gan", 2345, GAN, MNIST, RATES),
    "mnist-r1": Task("mnist-gan", 2345, GAN, (*MNIST, "r1=1"), RATES),
    "stacked": Task(
        *("stacked-mnist-gan", 2000, ("modes", "ema_modes", "reverse_kl", "ema_reverse_kl")),
        (
            *("precision=bf16-mixed", "batch=128", "graph=true", "discriminator_width=16"),
            *("epochs=2", "evaluate_every=1000", "average_last=1"),
        ),
        RATES,
        sign=1,
    ),
    "faces": Task(
        *("own-gan", 2820),
        tuple(name.replace("classifier", "efficientnet_lite0") for name in GAN),
        (
            *("precision=bf16-mixed", "batch=128", "graph=true", "epochs=30", "samples=2500"),
            *("evaluate_every=940", "average_last=2", "folder={data}/utkface-64"),
            "features=benchmarks.features:efficientnet_lite0",
        ),
        RATES,
    ),
    "flowers": Task("flowers", 480, ("top1",), (*CLASSIFIER, "epochs=30"), DECAYS, sign=1),
    "pets": Task("pets", 1160, ("top1",), (*CLASSIFIER, "epochs=20"), DECAYS, sign=1),
}
SHARES = 0.1, 0.03, 0.3
RULES = {
    "atom": (1.0, 0.2, 5.0),
    **dict.fromkeys(("atom-calibrated", "atom-capped", "atom-share"), SHARES),
    **dict.fromkeys(("atom-energy", "atom-decay", "atom-warm-up"), SHARES),
}
"""Methods and their strengths: the weight of `atom`, the share of the others; the middle first."""


@dataclass(frozen=True)
class Planned:
    """A run of the study."""

    task: str
    method: str
    strength: float
    tuned: float
    key: RunKey


def plan(name: str, data: Path, tuned: float | None = None) -> Iterator[Planned]:
    """The runs of a task: those that tune plain training, or with its tuned value all others."""
    task = TASKS[name]
    experiment = find_experiment(task.experiment)
    settings = [each.format(data=data) for each in task.settings]
    setting, values = task.tuned

    def planned(method: str, strength: float, seed: int, value: float) -> Planned:
        own = [f"{setting}={value}"]
        if method != "plain":
            own.append(f"weight={strength}")
        if method in ("atom-decay", "atom-warm-up"):
            own.append(f"method.steps={task.steps}")
        key = run_key(
            *(experiment, method, seed, [*settings, *own]), validation=seed in TUNING_SEEDS
        )
        return Planned(name, method, strength, value, key)

    if tuned is None:
        for value in values:
            yield from (planned("plain", 0, seed, value) for seed in TUNING_SEEDS)
        return
    yield from (planned("plain", 0, seed, tuned) for seed in SEEDS)
    for place in range(len(SHARES)):
        for method, strengths in RULES.items():
            yield from (planned(method, strengths[place], seed, tuned) for seed in SEEDS)


def metric_of(each: Planned, out: Path) -> dict[str, float] | None:
    """Metrics of a run, or None if it is not finished."""
    result = Run(each.key.folder(out)).read_result()
    return None if result is None else result["metrics"]


def choose(name: str, data: Path, out: Path) -> float | None:
    """The value of the tuned setting with the best mean over seeds; None if runs are missing."""
    task, found = TASKS[name], dict[float, list[float]]()
    for each in plan(name, data):
        metrics = metric_of(each, out)
        if metrics is None:
            return None
        found.setdefault(each.tuned, []).append(task.sign * metrics[task.metrics[0]])
    return max(found, key=lambda value: mean(found[value]))


def train(runs: list[Planned], out: Path, machine: Machine, jobs: int) -> None:
    """Train all runs that are not finished, with a line for each that ends."""

    def tell(event: Event) -> None:
        if event.kind in ("finished", "failed"):
            where = event.key.folder(Path())
            print(f"{event.kind} {where} ({event.done:.0f} of {event.total})", flush=True)

    report = run_sweep([each.key for each in runs], out, machine, jobs, tell)
    for failure in report.failed:
        print(f"{failure.key.method}, seed {failure.key.seed}: {failure.reason} ({failure.log})")


def collect(names: list[str], data: Path, out: Path) -> None:
    """Write a row per finished run to the CSV; rows of other tasks stay."""
    rows: list[dict[str, Any]] = []
    for name in names:
        value = choose(name, data, out)
        runs = [*plan(name, data), *(plan(name, data, value) if value is not None else ())]
        for each in runs:
            result = Run(each.key.folder(out)).read_result()
            if result is None:
                continue
            metrics = {metric: result["metrics"][metric] for metric in TASKS[name].metrics}
            rows += [
                {
                    "task": name,
                    "phase": "tuning" if each.key.validation else "comparison",
                    "tuned": f"{TASKS[name].tuned[0]}={each.tuned:g}",
                    "method": each.method,
                    "strength": each.strength,
                    "seed": each.key.seed,
                    "metric": metric,
                    "value": round(number, 5),
                    "broken_down": result.get("broken_down") is not None,
                }
                for metric, number in metrics.items()
            ]
    path = record.FOLDER / "strengths.csv"
    kept = [row for row in read() if row["task"] not in {row["task"] for row in rows}]
    if rows:
        path.unlink(missing_ok=True)
        if kept:
            with path.open("w", newline="") as file:
                writer = csv.DictWriter(file, fieldnames=list(kept[0]))
                writer.writeheader()
                writer.writerows(kept)
        print(f"{len(rows)} rows in {record.append('strengths', rows)}")


def read() -> list[dict[str, str]]:
    """The rows of the CSV."""
    path = record.FOLDER / "strengths.csv"
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def table() -> str:
    """Mean paired differences to plain, in per cent of plain, as Markdown; positive is better."""
    values: dict[tuple[str, str, float], dict[int, float]] = {}
    for row in read():
        if row["phase"] == "comparison" and row["metric"] == TASKS[row["task"]].metrics[0]:
            place = row["task"], row["method"], float(row["strength"])
            values.setdefault(place, {})[int(row["seed"])] = float(row["value"])
    tasks = [name for name in TASKS if (name, "plain", 0.0) in values]
    lines = [
        f"| rule | strength | {' | '.join(tasks)} | worst | mean |",
        f"|---|---:|{'---:|' * (len(tasks) + 2)}",
    ]
    for method, strengths in RULES.items():
        for strength in sorted(strengths):
            gains = []
            for task in tasks:
                plain, own = values[task, "plain", 0.0], values.get((task, method, strength), {})
                both = plain.keys() & own.keys()
                if not both:
                    gains.append(None)
                    continue
                difference = compare(plain, own).difference if len(both) > 1 else None
                if difference is None:
                    gains.append(None)
                    continue
                scale = 100 * TASKS[task].sign / mean(plain[seed] for seed in both)
                gains.append(scale * difference)
            known = [gain for gain in gains if gain is not None]
            if known:
                cells = ["" if gain is None else f"{gain:+.1f}" for gain in gains]
                ends = [f"{min(known):+.1f}", f"{mean(known):+.1f}"]
                lines.append(f"| {method} | {strength:g} | {' | '.join([*cells, *ends])} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, default=Path("data"))
    parser.add_argument("--out", type=Path, default=Path("runs"), help="folder of the runs")
    parser.add_argument("--tasks", choices=TASKS, nargs="+", default=list(TASKS))
    parser.add_argument("--rules", choices=RULES, nargs="+", default=list(RULES))
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--mps", action="store_true", help="share the GPU through NVIDIA MPS")
    parser.add_argument("--collect", action="store_true", help="only read finished runs")
    parser.add_argument("--table", action="store_true", help="only print the comparison")
    given = parser.parse_args()
    import_extensions(["benchmarks.rules"])
    data, machine = given.data.resolve(), Machine(device=given.device, data=given.data.resolve())
    if not (given.collect or given.table):
        with share_gpu(given.device) if given.mps else nullcontext():
            tuning = [each for name in given.tasks for each in plan(name, data)]
            train(tuning, given.out, machine, given.jobs)
            rest = []
            for name in given.tasks:
                value = choose(name, data, given.out)
                print(f"{name}: {TASKS[name].tuned[0]} {value}", flush=True)
                if value is not None:
                    rest += list(plan(name, data, value))
            wanted = [each for each in rest if each.method in ("plain", *given.rules)]
            train(wanted, given.out, machine, given.jobs)
    if not given.table:
        collect(given.tasks, data, given.out)
    print(table())


if __name__ == "__main__":
    main()
