"""Results in order: runs that differ only in their seed are a row, comparable rows are a group."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

from atomsep.experiments.gan.experiments import AVERAGED
from atomsep.experiments.registry import EXPERIMENTS, run_key
from atomsep.experiments.sweeps.comparison import Comparison, compare_all
from atomsep.experiments.task import Experiment, main_metric
from atomsep.methods import METHODS
from atomsep.report import paper
from atomsep.report.numbers import spread_text

OF_A_METHOD = ("weight", "method")
"""Settings in which the rows of a group may differ."""

Result = Mapping[str, Any]
Results = Sequence[Result]


@dataclass(frozen=True)
class Row:
    """A method with one weight and one set of options, over its seeds.

    Attributes:
        method: its name.
        title: its name in tables, with weight and options if the group has it more than once.
        settings: the settings of its runs.
        changes: weight and options, as `key=value`, if they are not the experiment's defaults.
        values: the metric by seed, in the table's unit.
        others: the other metrics by seed, as recorded.
        broken_down: seeds whose runs broke down; they count like all others.
    """

    method: str
    title: str
    settings: Mapping[str, Any]
    changes: list[str]
    values: Mapping[int, float]
    others: Mapping[str, Mapping[int, float]]
    broken_down: tuple[int, ...]

    @property
    def mean(self) -> float:
        """Mean of the metric over all seeds."""
        return fmean(self.values.values())


@dataclass(frozen=True)
class Group:
    """Rows of one experiment that differ only in the method, in one metric.

    Attributes:
        experiment: its name.
        title: the experiment's title.
        metric: its name.
        label: the metric's name in tables, with its unit.
        higher_is_better: whether larger values of the metric are better.
        tiny: whether the runs are on embedded data.
        changes: settings of all rows that are not the experiment's defaults, as `key=value`.
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
    rows: tuple[Row, ...]
    comparisons: Mapping[int, Comparison]

    @property
    def best(self) -> int:
        """Place of the row with the best mean."""
        sign = 1 if self.higher_is_better else -1
        means = [sign * row.mean for row in self.rows]
        return max(range(len(means)), key=lambda i: -math.inf if math.isnan(means[i]) else means[i])

    @property
    def tied(self) -> tuple[int, ...]:
        """Places of the rows whose mean is the best to the digits that tables show.

        They are one if there is no tie, and none if nothing is compared.
        """
        if len(self.rows) == 1:
            return ()
        means = [spread_text(row.mean, math.nan) for row in self.rows]
        return tuple(place for place, mean in enumerate(means) if mean == means[self.best])


def group_results(results: Results) -> list[Group]:
    """All groups of some results, in the order of the paper, then of their names."""

    def alike(result: Result) -> Any:
        experiment = EXPERIMENTS.get(result["experiment"])
        ignored = OF_A_METHOD + (() if experiment is None else experiment.settings.only_recorded())
        shared = {k: v for k, v in result["settings"].items() if k not in ignored}
        return [result["experiment"], result.get("tiny", False), shared]

    parts = _split(sorted(results, key=_place), alike)
    return [_group(part, metric) for part in parts for metric in _metrics_shown(part)]


def _split(results: Results, key: Callable[[Result], Any]) -> list[list[Result]]:
    """Results with equal keys together, in the order of their first."""
    parts: dict[str, list[Result]] = {}
    for result in results:
        parts.setdefault(json.dumps(key(result), sort_keys=True), []).append(result)
    return list(parts.values())


def _place(result: Result) -> tuple[Any, ...]:
    order = [name for family in paper.FAMILIES for name in family.experiments]
    name, tiny = result["experiment"], result.get("tiny", False)
    known = order.index(name) if name in order else len(order)
    return (known, name, tiny, len(_changes(result, shared=True)))


def _metrics_shown(results: Results) -> list[str]:
    """The paper's metrics, or the experiment's own; a group for each that the runs have.

    Where a GAN's runs have a moving average of the generator, it has a group beside the generator.
    """
    name = results[0]["experiment"]
    if name in paper.METRICS:
        return [metric for metric in paper.METRICS[name] if metric in results[0]["metrics"]]
    experiment = EXPERIMENTS.get(name)
    if experiment is None:
        return list(dict.fromkeys(next(iter(result["metrics"])) for result in results))
    shown: dict[str, None] = {}
    for result in results:
        metric = main_metric(experiment, result["metrics"])
        averaged = AVERAGED + metric
        shown |= dict.fromkeys(m for m in (metric, averaged) if m in result["metrics"])
    return list(shown)


def _group(results: Results, metric: str) -> Group:
    results = [result for result in results if metric in result["metrics"]]
    first = results[0]
    experiment = EXPERIMENTS.get(first["experiment"])  # None if its author removed it
    percent = experiment is not None and experiment.percent
    order = {name: place for place, name in enumerate(METHODS)}
    parts = _split(results, lambda r: [r["method"], *(r["settings"].get(k) for k in OF_A_METHOD)])
    parts.sort(key=lambda part: order.get(part[0]["method"], len(order)))
    methods = [part[0]["method"] for part in parts]
    rows = tuple(
        _row(part, metric, experiment, methods.count(part[0]["method"]) > 1) for part in parts
    )
    return Group(
        experiment=first["experiment"],
        title=first["experiment"] if experiment is None else experiment.title,
        metric=metric,
        label=metric_label(metric, percent),
        higher_is_better=experiment is None or experiment.higher_is_better,
        tiny=first.get("tiny", False),
        changes=tuple(_changes(first, shared=True)),
        rows=rows,
        comparisons=_compare(rows),
    )


def _row(results: Results, metric: str, experiment: Experiment | None, repeated: bool) -> Row:
    method, settings = results[0]["method"], results[0]["settings"]
    title = METHODS[method].title if method in METHODS else method
    if method == "plain" and experiment is not None:
        title = experiment.plain
    if repeated:
        own = [text for name in OF_A_METHOD for text in assignments(name, settings.get(name))]
        title += f" ({', '.join(own)})"
    factor = 100 if experiment is not None and experiment.percent else 1
    others: dict[str, dict[int, float]] = {}
    for result in results:
        for name, value in result["metrics"].items():
            if name != metric and name.startswith(AVERAGED) == metric.startswith(AVERAGED):
                others.setdefault(name, {})[result["seed"]] = value
    return Row(
        method,
        title,
        settings,
        _changes(results[0], shared=False),
        {result["seed"]: factor * result["metrics"][metric] for result in results},
        others,
        tuple(sorted(result["seed"] for result in results if result.get("broken_down"))),
    )


def _compare(rows: Sequence[Row]) -> dict[int, Comparison]:
    """Each row with the plain one, if there is one."""
    plain = [row for row in rows if row.method == "plain"]
    others = {str(place): r.values for place, r in enumerate(rows) if r.method != "plain"}
    compared = compare_all(plain[0].values, others) if plain else {}
    return {int(place): comparison for place, comparison in compared.items()}


def _changes(result: Result, *, shared: bool) -> list[str]:
    """Settings that are not the experiment's defaults: those of all methods, or the method's."""
    experiment = EXPERIMENTS.get(result["experiment"])
    if experiment is None or result["method"] not in experiment.methods:
        return []
    key = run_key(experiment, result["method"], 0, tiny=result.get("tiny", False))
    default, ignored = asdict(key.settings), key.settings.only_recorded()
    return [
        text
        for name, value in result["settings"].items()
        if (name in OF_A_METHOD) != shared and value != default.get(name) and name not in ignored
        for text in assignments(name, value)
    ]


def assignments(name: str, value: Any) -> list[str]:
    """A setting as it is given on the command line."""
    if isinstance(value, dict):
        return [text for key, each in value.items() for text in assignments(f"{name}.{key}", each)]
    return [f"{name}={value:g}" if isinstance(value, float) else f"{name}={value}"]


def is_share(metric: str) -> bool:
    """Whether a metric has the unit of the classifiers' main metrics, which tables show times 100.

    Example:
        >>> is_share("top5"), is_share("f1_weighted"), is_share("entropy")
        (True, True, False)
    """
    return metric in ("top1", "top5", "accuracy", "mcc") or metric.startswith("f1")


def metric_label(metric: str, percent: bool) -> str:
    """The name of a metric above a column.

    Example:
        >>> metric_label("top1", True), metric_label("frechet_classifier", False)
        ('top-1 accuracy, %', 'Fréchet distance over classifier features')
        >>> metric_label("ema_fid", False)
        'FID, averaged generator'
    """
    if metric.startswith(AVERAGED):
        return metric_label(metric.removeprefix(AVERAGED), percent) + ", averaged generator"
    if metric.startswith("frechet_"):
        return f"Fréchet distance over {metric.removeprefix('frechet_')} features"
    names = {"top1": "top-1 accuracy", "top5": "top-5 accuracy", "f1": "F1", "mcc": "MCC"}
    name = names.get(metric, metric.upper() if metric == "fid" else metric)
    return f"{name}, %" if percent else name
