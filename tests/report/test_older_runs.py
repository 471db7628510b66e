"""Tables take runs that recorded more or less on the way for the same settings."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from atomsep.experiments.registry import find_experiment, run_key
from atomsep.report.groups import group_results


def result(name: str, method: str, seed: int, every: int) -> dict[str, Any]:
    experiment = find_experiment(name)
    key = run_key(experiment, method, seed, [f"evaluate_every={every}"])
    record = {**key.record(), "settings": asdict(key.settings)}
    return {**record, "metrics": {experiment.metric: 0.5 + seed / 10}}


def test_classifiers_are_one_group_however_often_they_were_evaluated() -> None:
    results = [result("flowers", m, s, every=s) for m in ("plain", "atom") for s in (0, 1)]
    [group] = group_results(results)
    assert group.changes == ()
    assert [sorted(row.values) for row in group.rows] == [[0, 1], [0, 1]]


def test_gans_are_not_because_their_result_depends_on_it() -> None:
    groups = group_results([result("mnist-gan", "plain", 0, every) for every in (500, 1000)])
    assert [group.changes for group in groups] == [(), ("evaluate_every=500",)]
