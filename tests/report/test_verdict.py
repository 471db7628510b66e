"""Verdicts on constructed seeds, and ties."""

from __future__ import annotations

import math
from dataclasses import asdict

import pytest

from atomsep.experiments.registry import EXPERIMENTS, run_key
from atomsep.report.groups import Group, group_results
from atomsep.report.tables import build_tables
from atomsep.report.verdict import verdict


def results(experiment: str, methods: dict[str, list[float]]) -> list[dict[str, object]]:
    known = EXPERIMENTS[experiment]
    found = []
    for method, values in methods.items():
        for seed, value in enumerate(values):
            key = run_key(known, method, seed)
            metrics = {known.metric: value}
            found.append({**key.record(), "settings": asdict(key.settings), "metrics": metrics})
    return found


def group(experiment: str, **methods: list[float]) -> Group:
    return group_results(results(experiment, methods))[0]


@pytest.mark.parametrize(
    ("plain", "atom", "accuracy", "fid"),
    [
        ([0.50, 0.50, 0.50], [0.52, 0.54, 0.53], "better", "worse"),
        ([0.52, 0.54, 0.53], [0.50, 0.50, 0.50], "worse", "better"),
        ([0.50, 0.52, 0.51], [0.51, 0.50, 0.52], "no difference shown", "no difference shown"),
        ([0.50, 0.50, 0.50], [0.50, 0.50, 0.50], "no difference shown", "no difference shown"),
        ([0.50, 0.50], [0.60, 0.61], "not tested", "not tested"),
        ([0.5, 0.5, 0.5], [0.5, 0.6, math.nan], "not tested", "not tested"),
        ([0.5, 0.5, 0.5], [0.6, 0.6, 0.6], "not tested", "not tested"),
    ],
)
def test_the_word(plain: list[float], atom: list[float], accuracy: str, fid: str) -> None:
    """The first has t = 5.196 with two degrees of freedom, so p = 0.0351."""
    for experiment, word in (("flowers", accuracy), ("mnist-gan", fid)):
        found = verdict(group(experiment, plain=plain, atom=atom), 1)
        assert found is not None
        assert found.word == word, (experiment, found)


def test_holms_correction_counts() -> None:
    """The same seeds no longer suffice beside a second method: 2 x 0.0351 = 0.0702."""
    seeds = [0.52, 0.54, 0.53]
    two = group("flowers", plain=[0.5] * 3, simclr=seeds, atom=seeds)
    for place in (1, 2):
        found = verdict(two, place)
        assert found is not None
        assert found.word == "no difference shown"
        assert found.reason.endswith("over 3 paired seeds, p = 0.070")


def test_the_reason_has_difference_interval_seeds_and_p() -> None:
    found = verdict(group("flowers", plain=[0.5] * 3, atom=[0.52, 0.54, 0.53]), 1)
    assert found is not None
    assert found.reason == "+3.00 (95 % interval +0.52 to +5.48) over 3 paired seeds, p = 0.035"
    few = verdict(group("flowers", plain=[0.5], atom=[0.52, 0.54]), 1)
    assert few == ("not tested", "+2.00 over 1 paired seed; a test needs at least 3")


def test_without_plain_there_is_no_verdict() -> None:
    assert verdict(group("flowers", atom=[0.5] * 3), 0) is None
    assert verdict(group("flowers", plain=[0.5] * 3), 0) is None


def test_rows_without_a_common_seed_are_not_tested() -> None:
    some = results("flowers", {"plain": [0.5], "atom": [0.6, 0.6]})
    [found] = group_results([r for r in some if r["method"] == "plain" or r["seed"] == 1])
    assert verdict(found, 1) == ("not tested", "no seed in common")


def test_ties_are_marked_as_ties() -> None:
    """To the digits that the table shows: 0.50001 and 0.5 are both 50.00 %."""
    some = results("flowers", {"plain": [0.5], "hinge-2": [0.4], "atom": [0.50001]})
    texts = [row[1].text for row in build_tables(some)[0].sections[0].rows]
    assert texts == ["50.00 (tie)", "40.00", "50.00 (tie)"]
    assert [row[1].strong for row in build_tables(some)[0].sections[0].rows] == [True, False, True]
    apart = results("flowers", {"plain": [0.5], "hinge-2": [0.4], "atom": [0.5001]})
    rows = build_tables(apart)[0].sections[0].rows
    assert [row[1].text for row in rows] == ["50.00", "40.00", "50.01"]
    assert [row[1].strong for row in rows] == [False, False, True]


def test_one_row_is_no_winner() -> None:
    [row] = build_tables(results("flowers", {"plain": [0.5]}))[0].sections[0].rows
    assert not row[1].strong
