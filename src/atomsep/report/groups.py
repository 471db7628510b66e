"""Results put in order: runs that differ by their seed are a row, rows that compare a group."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from atomsep.experiments.errors import ExperimentError
from atomsep.experiments.registry import find_experiment, run_key
from atomsep.experiments.sweeps.comparison import Comparison, compare_all
from atomsep.experiments.task import Experiment, main_metric
from atomsep.methods import METHODS
from atomsep.report import paper

OF_A_METHOD = ("weight", "method")
"""Settings in which the rows of a group may differ."""

Results = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Row:
    """A method with one weight and one set of options, over its seeds.

    Attributes:
        method: its name.
        title: in tables, with the weight and options if the group has the method more than once.
        settings: of the runs.
        values: the metric by seed, in the table's unit.
        others: the other metrics by seed, as they were recorded.
    """

    method: str
    title: str
    settings: Mapping[str, Any]
    values: Mapping[int, float]
    others: Mapping[str, Mapping[int, float]]


@dataclass(frozen=True)
class Group:
    """Rows of one experiment that differ in nothing but the method, in one metric.

    Attributes:
        experiment: its name.
        title: of the experiment.
        metric: its name.
        label: of the metric, with its unit.
        higher_is_better: which way it is good.
        tiny: the form on embedded data.
        changes: settings of all rows that are not the experiment's own, as `key=value`.
        own_changes: by row, those of the method.
        rows: in the order of the methods.
        comparisons: with the plain method, by place among the rows.
    """

    experiment: str
    title: str
    metric: str
    label: str
    higher_is_better: bool
    tiny: bool
    changes: tuple[str, ...]
    own_changes: tuple[tuple[str, ...], ...]
    rows: tuple[Row, ...]
    comparisons: Mapping[int, Comparison]

    @property
    def best(self) -> int:
        """Place of the row with the best mean."""
        sign = 1 if self.higher_is_better else -1
        means = [sign * average(row.values.values()) for row in self.rows]
        finite = [-math.inf if math.isnan(mean) else mean for mean in means]
        return finite.index(max(finite))


def average(values: Iterable[float]) -> float:
    """Mean of some numbers."""
    numbers = list(values)
    return sum(numbers) / len(numbers)


def group_results(results: Results) -> list[Group]:
    """All groups of some results, in the order of the paper, then of their names."""
    by_setting: dict[str, list[Mapping[str, Any]]] = {}
    for result in sorted(results, key=_place):
        shared = {k: v for k, v in result["settings"].items() if k not in OF_A_METHOD}
        name = [result["experiment"], result.get("tiny", False), shared]
        by_setting.setdefault(json.dumps(name, sort_keys=True), []).append(result)
    return [_group(part, metric) for part in by_setting.values() for metric in _metrics_shown(part)]


def _place(result: Mapping[str, Any]) -> tuple[Any, ...]:
    order = [name for family in paper.FAMILIES for name in family.experiments]
    name, tiny = result["experiment"], result.get("tiny", False)
    known = order.index(name) if name in order else len(order)
    return (known, name, tiny, len(_changes(result, shared=True)))


def _metrics_shown(results: Results) -> list[str]:
    """Those of the paper, or the experiment's own; a group for each that runs have."""
    name = results[0]["experiment"]
    if name in paper.METRICS:
        return [metric for metric in paper.METRICS[name] if metric in results[0]["metrics"]]
    return list(dict.fromkeys(_metric(result) for result in results))


def _metric(result: Mapping[str, Any]) -> str:
    experiment = known_experiment(result["experiment"])
    if experiment is None:
        return str(next(iter(result["metrics"])))
    return main_metric(experiment, result["metrics"])


def known_experiment(name: str) -> Experiment | None:
    """The experiment of a name; None if its author has taken it away."""
    try:
        return find_experiment(name)
    except ExperimentError:
        return None


def _group(results: Results, metric: str) -> Group:
    results = [result for result in results if metric in result["metrics"]]
    first = results[0]
    experiment = known_experiment(first["experiment"])
    percent = experiment is not None and experiment.percent
    by_row: dict[str, list[Mapping[str, Any]]] = {}
    for result in results:
        own = [result["method"], {key: result["settings"].get(key) for key in OF_A_METHOD}]
        by_row.setdefault(json.dumps(own, sort_keys=True), []).append(result)
    parts = sorted(by_row.values(), key=lambda part: _method_place(part[0]["method"]))
    methods = [part[0]["method"] for part in parts]
    rows = tuple(_row(part, metric, experiment, percent, methods) for part in parts)
    return Group(
        experiment=first["experiment"],
        title=first["experiment"] if experiment is None else experiment.title,
        metric=metric,
        label=metric_label(metric, percent),
        higher_is_better=experiment is None or experiment.higher_is_better,
        tiny=first.get("tiny", False),
        changes=tuple(_changes(first, shared=True)),
        own_changes=tuple(tuple(_changes(part[0], shared=False)) for part in parts),
        rows=rows,
        comparisons=_compare(rows),
    )


def _method_place(method: str) -> int:
    names = list(METHODS)
    return names.index(method) if method in names else len(names)


def _row(
    results: Results,
    metric: str,
    experiment: Experiment | None,
    percent: bool,
    methods: Sequence[str],
) -> Row:
    method, settings = results[0]["method"], results[0]["settings"]
    if method == "plain" and experiment is not None:
        title = experiment.plain
    else:
        title = METHODS[method].title if method in METHODS else method
    if methods.count(method) > 1:
        own = [text for name in OF_A_METHOD for text in _assignments(name, settings.get(name))]
        title += f" ({', '.join(own)})"
    factor = 100 if percent else 1
    names = dict.fromkeys(name for result in results for name in result["metrics"])
    return Row(
        method,
        title,
        settings,
        {result["seed"]: factor * result["metrics"][metric] for result in results},
        {
            name: {r["seed"]: r["metrics"][name] for r in results if name in r["metrics"]}
            for name in names
            if name != metric
        },
    )


def _compare(rows: Sequence[Row]) -> dict[int, Comparison]:
    """Each row with the plain one, if there is one."""
    plain = [row for row in rows if row.method == "plain"]
    if not plain:
        return {}
    others = {str(place): r.values for place, r in enumerate(rows) if r.method != "plain"}
    return {int(k): comparison for k, comparison in compare_all(plain[0].values, others).items()}


def _changes(result: Mapping[str, Any], *, shared: bool) -> list[str]:
    """Settings that are not the experiment's own: those of all methods, or the method's."""
    experiment = known_experiment(result["experiment"])
    if experiment is None or result["method"] not in experiment.methods:
        return []
    key = run_key(experiment, result["method"], 0, tiny=result.get("tiny", False))
    own = asdict(key.settings)
    changed = []
    for name, value in result["settings"].items():
        if (name in OF_A_METHOD) != shared and value != own.get(name):
            changed += _assignments(name, value)
    return changed


def _assignments(name: str, value: Any) -> list[str]:
    """A setting as it is given on the command line."""
    if isinstance(value, dict):
        return [text for key, each in value.items() for text in _assignments(f"{name}.{key}", each)]
    return [f"{name}={value:g}" if isinstance(value, float) else f"{name}={value}"]


def metric_label(metric: str, percent: bool) -> str:
    """What a metric is called above a column.

    Example:
        >>> metric_label("top1", True), metric_label("frechet_classifier", False)
        ('top-1 accuracy, %', 'Fréchet distance over classifier features')
    """
    if metric.startswith("frechet_"):
        return f"Fréchet distance over {metric.removeprefix('frechet_')} features"
    names = {"top1": "top-1 accuracy", "top5": "top-5 accuracy", "f1": "F1", "mcc": "MCC"}
    name = names.get(metric, metric.upper() if metric == "fid" else metric)
    return f"{name}, %" if percent else name
