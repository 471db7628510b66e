"""The paper's protocol for choosing settings, with the weight decay beside the learning rate.

The plain method decides on the learning rate, at the default weight decay, and then on the weight
decay at that rate. If this moves the decay, the neighbours of the rate are tried again. Then comes
the weight of each method's loss, at this rate and decay. The best mean of the experiment's metric
over the search's seeds wins, on samples held out of the training set: a search never sees the test
samples, and its seeds are not among those reported. Settings that are given are kept.

A grid whose best value lies at an end is widened there (see `grids`). All methods get the same
number of weights: when one grid is widened, or is longer from the start, the others are refined.

Every trial is a run on disk like any other, so that a search that was stopped continues where it
was. `search-DIGEST.json` in the experiment's folder of runs holds all trials and the choices; the
digest is that of the settings before the search and of the names of those that it keeps.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from atomsep.experiments.errors import ExperimentError, StoppedError
from atomsep.experiments.machine import Machine
from atomsep.experiments.registry import run_key
from atomsep.experiments.runs import RunKey
from atomsep.experiments.sweeps.choices import SETTINGS, Point, Search, Trial, assigned
from atomsep.experiments.sweeps.grids import best_of, between, beyond
from atomsep.experiments.sweeps.ledger import Event, OnEvent
from atomsep.experiments.sweeps.sweep import open_sweep
from atomsep.experiments.task import Experiment, main_metric

if TYPE_CHECKING:
    from atomsep.experiments.sweeps.on_ray import RaySweep
    from atomsep.experiments.sweeps.sweep import Sweep


def search(
    experiment: Experiment,
    methods: Iterable[str],
    root: Path,
    machine: Machine | None = None,
    jobs: int | None = 1,
    on_event: OnEvent = lambda event: None,
    *,
    seeds: Sequence[int] = range(100, 105),
    reported: Iterable[int] = (),
    assignments: Sequence[str] = (),
    tiny: bool = False,
    executor: str = "local",
) -> Search:
    """Choose learning rate, weight decay and the methods' weights, and write them to a file.

    Args:
        experiment: the experiment to search for.
        methods: methods whose weights to choose; "plain" has none.
        root: the folder of all runs.
        machine: where to run.
        jobs: number of trials at a time; None: as many as cores and memory allow.
        on_event: is called with every event; see `run_sweep`.
        seeds: seeds of the search.
        reported: seeds of the results, which the search must not use.
        assignments: settings to change, as `key=value`. A learning rate or weight decay among them
            is kept.
        tiny: the form on embedded data.
        executor: see `run_sweep`.

    Raises:
        ExperimentError: seeds overlap, a weight was set, there is nothing to search, the first
            trial could not start (its data is missing), or every trial of the plain method failed.
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
    others = [method for method in dict.fromkeys(methods) if method != "plain"]
    weights = {method: weight_grid(experiment, method) for method in others}
    held = run_key(experiment, "plain", 0, assignments, tiny=tiny)
    found = Search(
        *(experiment.name, experiment.metric, experiment.higher_is_better, tuple(seeds)),
        held=list(assignments),
        learning_rate=held.settings.learning_rate,
        weight_decay=getattr(held.settings, "weight_decay", None),
    )
    grids = {"learning_rate": experiment.learning_rates, "weight_decay": experiment.weight_decays}
    plain = {name: grid for name, grid in grids.items() if grid and name not in given}
    with open_sweep(executor, root, machine or Machine(), jobs) as sweep:
        path = held.folder(root).parents[1] / f"search-{_digest(held, given)}.json"
        listen = stopping_at_first(on_event)
        explorer = Explorer(experiment, found, sweep, listen, assignments, tiny, path)
        explorer.choose_plain(plain)
        explorer.explore("weight", weights)
    for method in others:
        best = best_of(found.scores(method, "weight"))
        if best is not None:
            found.weights[method] = best
    found.write(path)
    return found


def stopping_at_first(on_event: OnEvent) -> OnEvent:
    """A listener that ends a search whose first trial cannot start: the others could not either.

    Raises:
        ExperimentError: from the listener, with the reason that `train` would give.
    """
    works = False

    def listen(event: Event) -> None:
        nonlocal works
        on_event(event)
        works = works or event.kind in ("started", "skipped", "finished")
        if event.unstarted and not works:
            raise ExperimentError(event.unstarted)

    return listen


class Explorer:
    """Tries values of one setting after another, and adds the trials to what was found."""

    def __init__(
        self,
        experiment: Experiment,
        found: Search,
        sweep: Sweep | RaySweep,
        on_event: OnEvent,
        assignments: Sequence[str],
        tiny: bool,
        path: Path,
    ) -> None:
        self.experiment, self.found, self.sweep, self.on_event = experiment, found, sweep, on_event
        self.assignments, self.tiny, self.path = assignments, tiny, path

    def choose_plain(self, grids: Mapping[str, Sequence[float]]) -> None:
        """Choose the settings of the plain method, one after the other."""
        found = self.found
        before = found.weight_decay
        if not grids:
            self.try_all("given", [("plain", found.point("plain"))])
        for setting, grid in grids.items():
            self.explore(setting, {"plain": grid})
            self._choose(setting)
        if len(grids) == 2 and found.weight_decay != before:
            rates = sorted({trial.learning_rate for trial in found.trials})
            place = rates.index(found.learning_rate)
            near = rates[max(0, place - 1) : place + 2]
            self.explore("learning_rate", {"plain": near})
            self._choose("learning_rate")

    def _choose(self, setting: str) -> None:
        best = best_of(self.found.scores("plain", setting))
        if best is None:
            raise ExperimentError(
                f"every {setting.replace('_', ' ')} failed, the last one with: "
                f"{self.found.trials[-1].reason}"
            )
        setattr(self.found, setting, best)

    def explore(self, setting: str, grids: Mapping[str, Sequence[float]]) -> None:
        """Try a setting's values for each method, and more of them; see the module."""
        found, pending = self.found, {method: list(grid) for method, grid in grids.items()}
        while pending:
            self.try_all(
                setting,
                [
                    (method, {**found.point(method), setting: value})
                    for method, values in pending.items()
                    for value in values
                ],
            )
            scores = {method: found.scores(method, setting) for method in grids}
            outside, inside = {}, {}
            for method in grids:
                value = beyond(grids[method], scores[method])
                if value is not None and self._is_allowed(method, setting, value):
                    outside[method] = value
                elif (value := between(scores[method])) is not None:
                    inside[method] = value
            more, longest = inside | outside, max(map(len, scores.values()))
            behind = [method for method in more if len(scores[method]) < longest]
            pending = {method: [more[method]] for method in behind or (more if outside else ())}

    def _is_allowed(self, method: str, setting: str, value: float) -> bool:
        try:
            self.keys_of(method, {**self.found.point(method), setting: value})
        except ExperimentError:  # the setting has bounds
            return False
        return True

    def keys_of(self, method: str, point: Point) -> list[RunKey]:
        """The runs of a trial."""
        changes = [*self.assignments, *assigned(point, method)]
        return [
            run_key(self.experiment, method, seed, changes, tiny=self.tiny, validation=True)
            for seed in self.found.seeds
        ]

    def try_all(self, stage: str, points: Iterable[tuple[str, Point]]) -> None:
        """Train what was not tried yet, and write down how it went."""
        tried = [(trial.method, trial.point) for trial in self.found.trials]
        attempts = [self.keys_of(*point) for point in points if point not in tried]
        report = self.sweep.run([key for keys in attempts for key in keys], self.on_event)
        if report.stopped:
            raise StoppedError(f"the search was stopped with {len(report.left)} trials left")
        reasons = {id(failure.key): failure.reason for failure in report.failed}
        results = {_name(result): result for result in report.results}
        self.found.trials += [self._trial(stage, keys, results, reasons) for keys in attempts]
        self.found.write(self.path)

    def _trial(
        self,
        stage: str,
        keys: list[RunKey],
        results: Mapping[str, Mapping[str, Any]],
        reasons: Mapping[int, str],
    ) -> Trial:
        """A trial with its metric by seed, from all results by `_name` and reasons by `id`."""
        values, reason, broken = {}, "", []
        for key in keys:
            result = results.get(_name(key.record()))
            if result is None:
                reason = reasons.get(id(key), "the run has no result")
                continue
            if result.get("broken_down"):
                broken.append(key.seed)
            metrics = result["metrics"]
            name = main_metric(self.experiment, metrics)
            if math.isfinite(metrics[name]):
                values[key.seed] = metrics[name]
            else:
                reason = f"{name} is {metrics[name]}"
        settings = keys[0].settings
        decay, weight = getattr(settings, "weight_decay", None), settings.weight or 0.0
        point = settings.learning_rate, decay, weight
        return Trial(stage, keys[0].method, *point, values, reason, tuple(broken))


def _digest(held: RunKey, given: Iterable[str]) -> str:
    """Eight digits that distinguish a search from those that start elsewhere or keep others."""
    text = " ".join([held.settings.digest(), *sorted(set(SETTINGS).intersection(given))])
    return hashlib.blake2b(text.encode(), digest_size=4).hexdigest()


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
