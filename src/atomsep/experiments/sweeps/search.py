"""The paper's protocol for choosing settings.

First the learning rate is chosen with the plain method, then the weight of each method's loss at
that rate. The best mean of the experiment's metric over the search's seeds wins, on samples held
out of the training set: a search never sees the test samples, and its seeds are not among those
reported. A learning rate that is set is kept, and only the weights are searched for.

Every trial is a run on disk like any other, so that a search that was stopped continues where it
was. `search.json` in the experiment's folder of runs holds all trials and the choices.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import mean
from typing import Any

from atomsep.experiments.errors import ExperimentError, StoppedError
from atomsep.experiments.files import write_text, writing
from atomsep.experiments.machine import Machine
from atomsep.experiments.registry import run_key
from atomsep.experiments.runs import RunKey
from atomsep.experiments.sweeps.ledger import OnEvent
from atomsep.experiments.sweeps.sweep import run_sweep
from atomsep.experiments.task import Experiment, main_metric


@dataclass(frozen=True)
class Trial:
    """A method with one learning rate and weight over the seeds of the search.

    Attributes:
        method: its name.
        learning_rate: learning rate of the optimiser.
        weight: weight of the method's loss.
        values: the metric by seed; a failed seed is missing.
        reason: why a seed failed; "" if none did. A trial with a failed seed cannot be chosen.
    """

    method: str
    learning_rate: float
    weight: float
    values: dict[int, float]
    reason: str = ""

    @property
    def mean(self) -> float:
        """Mean of the metric."""
        return mean(self.values.values())


@dataclass
class Search:
    """What a search tried and chose.

    Attributes:
        experiment: its name.
        metric: the metric that decided.
        seeds: seeds of the search.
        held: settings that were given.
        learning_rate: the chosen learning rate, or the given one.
        weights: the chosen weights, by method. A method whose trials all failed has none.
        trials: all trials, in order.
    """

    experiment: str
    metric: str
    seeds: tuple[int, ...]
    held: list[str] = field(default_factory=list)
    learning_rate: float = 0.0
    weights: dict[str, float] = field(default_factory=dict)
    trials: list[Trial] = field(default_factory=list)

    def assignments(self, method: str) -> list[str]:
        """The choices for a method, as settings to change.

        Example:
            >>> search = Search("synthetic", "accuracy", (100,), [], 0.3, {"atom": 12.5})
            >>> search.assignments("atom")
            ['learning_rate=0.3', 'weight=12.5']
        """
        chosen = [f"learning_rate={self.learning_rate!r}"]
        return chosen if method == "plain" else [*chosen, f"weight={self.weights[method]!r}"]

    def at_an_end(self, experiment: Experiment) -> list[str]:
        """A sentence for each choice that lies at an end of its grid."""
        grids = {method: weight_grid(experiment, method) for method in self.weights}
        chosen = [(f"weight of {m}", self.weights[m], grid) for m, grid in grids.items()]
        tried = {trial.learning_rate for trial in self.trials}
        chosen.insert(0, ("learning rate", self.learning_rate, tuple(tried)))
        return [
            f"The search chose the {end} {what} that it tried, {value:g}; a better one may lie "
            f"beyond"
            for what, value, grid in chosen
            for end, edge in (("smallest", min(grid)), ("largest", max(grid)))
            if len(grid) > 1 and value == edge
        ]

    def write(self, path: Path) -> None:
        """Write everything as JSON."""
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, json.dumps(asdict(self), indent=2) + "\n")


def search(
    experiment: Experiment,
    methods: Iterable[str],
    root: Path,
    machine: Machine | None = None,
    jobs: int = 1,
    on_event: OnEvent = lambda event: None,
    *,
    seeds: Sequence[int] = range(100, 105),
    reported: Iterable[int] = (),
    assignments: Sequence[str] = (),
    tiny: bool = False,
) -> Search:
    """Choose the learning rate and the methods' weights, and write `search.json`.

    Args:
        experiment: the experiment to search for.
        methods: methods whose weights to choose; "plain" has none.
        root: the folder of all runs.
        machine: where to run.
        jobs: number of trials at a time.
        on_event: is called with every event; see `run_sweep`.
        seeds: seeds of the search.
        reported: seeds of the results, which the search must not use.
        assignments: settings to change, as `key=value`. A learning rate among them is kept.
        tiny: the form on embedded data.

    Raises:
        ExperimentError: seeds overlap, a weight was set, there is nothing to search, or every
            trial of the plain method failed.
        StoppedError: it was interrupted; finished trials are kept.
    """
    given = {assignment.partition("=")[0].strip().replace("-", "_") for assignment in assignments}
    if "weight" in given:
        raise ExperimentError("--search chooses the weight; leave out --set weight=…")
    common = sorted(set(seeds) & set(reported))
    if common:
        raise ExperimentError(
            f"seed {common[0]} is in both --seeds and --search-seeds; choose different ones"
        )

    def keys_of(method: str, *changes: str) -> list[RunKey]:
        changed = (*assignments, *changes)
        return [
            run_key(experiment, method, seed, changed, tiny=tiny, validation=True) for seed in seeds
        ]

    def try_all(attempts: list[list[RunKey]]) -> None:
        trials = [key for keys in attempts for key in keys]
        report = run_sweep(trials, root, machine, jobs, on_event)
        if report.stopped:
            raise StoppedError(f"the search was stopped with {len(report.left)} trials left")
        reasons = {id(failure.key): failure.reason for failure in report.failed}
        results = {_name(result): result["metrics"] for result in report.results}
        found.trials += [_trial(experiment, keys, results, reasons) for keys in attempts]
        found.write(path)

    held = keys_of("plain")[0]
    path = replace(held, validation=False).folder(root).parents[1] / "search.json"
    found = Search(experiment.name, experiment.metric, tuple(seeds), list(assignments))
    found.learning_rate = held.settings.learning_rate
    rates = () if "learning_rate" in given else experiment.learning_rates
    if rates:
        try_all([keys_of("plain", f"learning_rate={rate!r}") for rate in rates])
        best = choose(found.trials, experiment.higher_is_better)
        if best is None:
            raise ExperimentError(
                f"every learning rate failed, the last one with: {found.trials[-1].reason}"
            )
        found.learning_rate = best.learning_rate
    rate = f"learning_rate={found.learning_rate!r}"
    others = [method for method in dict.fromkeys(methods) if method != "plain"]
    attempts = [] if rates else [keys_of("plain", rate)]
    attempts += [
        keys_of(method, rate, f"weight={weight!r}")
        for method in others
        for weight in weight_grid(experiment, method)
    ]
    try_all(attempts)
    for method in others:
        of_method = (trial for trial in found.trials if trial.method == method)
        best = choose(of_method, experiment.higher_is_better)
        if best is not None:
            found.weights[method] = best.weight
    found.write(path)
    return found


def _trial(
    experiment: Experiment,
    keys: list[RunKey],
    results: Mapping[str, Mapping[str, float]],
    reasons: Mapping[int, str],
) -> Trial:
    """A trial with its metric by seed, from all metrics by `_name` and reasons by `id`."""
    values, reason = {}, ""
    for key in keys:
        metrics = results.get(_name(key.record()))
        if metrics is None:
            reason = reasons.get(id(key), "the run has no result")
            continue
        name = main_metric(experiment, metrics)
        if math.isfinite(metrics[name]):
            values[key.seed] = metrics[name]
        else:
            reason = f"{name} is {metrics[name]}"
    settings = keys[0].settings
    return Trial(keys[0].method, settings.learning_rate, settings.weight or 0.0, values, reason)


def _name(record: Mapping[str, Any]) -> str:
    """What distinguishes a trial from the others of a search."""
    fields = {name: record[name] for name in ("method", "seed", "settings")}
    return json.dumps(fields, sort_keys=True)


def weight_grid(experiment: Experiment, method: str) -> tuple[float, ...]:
    """The weights to try for a method. The ablations of atom modeling share its grid.

    Raises:
        ExperimentError: the experiment has none.

    Example:
        >>> from atomsep.experiments.registry import find_experiment
        >>> weight_grid(find_experiment("synthetic"), "atom-no-neutrality")[0]
        12.5
    """
    grids = experiment.weight_grid
    general = method.partition("-")[0]
    grid = grids.get(method) or grids.get(general) or grids.get("")
    if not grid:
        raise ExperimentError(f"{experiment.name} has no weights to search; use --set weight=…")
    return grid


def choose(trials: Iterable[Trial], higher_is_better: bool) -> Trial | None:
    """The trial with the best mean, the first among equals; None if every one has a failed seed.

    Example:
        >>> values = {0.1: 0.7, 0.2: 0.9, 0.5: 0.8}
        >>> trials = [Trial("atom", 0.3, weight, {100: value}) for weight, value in values.items()]
        >>> choose(trials, higher_is_better=True).weight
        0.2
    """
    whole = [trial for trial in trials if not trial.reason]
    sign = 1 if higher_is_better else -1
    return max(whole, key=lambda trial: sign * trial.mean, default=None)
