"""Results on disk, and the paired comparison."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from scipy import stats

from atomsep.experiments.results import SeedResult, Store, UnreadableResultsError, compare
from atomsep.experiments.training import METHODS, Setting, train

TOY = Setting(epochs=1, train_samples=100, test_samples=300)


def result(seed: int) -> SeedResult:
    return SeedResult(seed, dict.fromkeys(METHODS, 0.5), {method: {} for method in METHODS})


def test_comparison_is_the_paired_t_test() -> None:
    first, second = [0.90, 0.93, 0.95, 0.91], [0.92, 0.92, 0.97, 0.95]
    expected = stats.ttest_rel(second, first)
    interval = expected.confidence_interval(0.95)
    found = compare(first, second)
    assert found.difference == pytest.approx(0.0175)
    assert (found.low, found.high) == pytest.approx((interval.low, interval.high))
    assert found.p_value == pytest.approx(expected.pvalue)


def test_comparison_without_a_spread() -> None:
    assert math.isnan(compare([0.9], [0.95]).p_value)
    assert compare([0.5, 0.75], [0.75, 1.0]).low == 0.25
    assert compare([0.5, 0.75], [0.5, 0.75]).p_value == 1


def test_store_gives_back_what_was_added(tmp_path: Path) -> None:
    trained = {method: train(TOY, 1, method) for method in METHODS}
    Store(tmp_path / "deep" / "folder", TOY).add(SeedResult.of(1, trained))
    back = Store(tmp_path / "deep" / "folder", TOY).finished[1]
    for method, run in trained.items():
        assert back.accuracy[method] == run.accuracy
        state, expected = back.model(method).state_dict(), run.model.state_dict()
        assert all(torch.equal(state[name], expected[name]) for name in expected)


def test_store_keeps_configurations_apart(tmp_path: Path) -> None:
    other = replace(TOY, weight=9.0)
    Store(tmp_path, TOY).add(result(0))
    store = Store(tmp_path, other)
    assert store.finished == {}
    store.add(result(7))
    assert list(Store(tmp_path, TOY).finished) == [0]
    assert list(Store(tmp_path, other).finished) == [7]
    assert Store(tmp_path, TOY, fresh=True).finished == {}


def test_a_write_that_fails_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(tmp_path, TOY)
    store.add(result(0))

    def broken(*_: object) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr("os.replace", broken)
    with pytest.raises(OSError, match="no space"):
        store.add(result(1))
    assert list(Store(tmp_path, TOY).finished) == [0]


@pytest.mark.parametrize("line", ["{", "[]", '{"seed": 1}', "nonsense"])
def test_a_line_that_is_no_result_is_named(tmp_path: Path, line: str) -> None:
    Store(tmp_path, TOY).add(result(0))
    path = tmp_path / "results.jsonl"
    path.write_text(path.read_text() + line + "\n")
    with pytest.raises(UnreadableResultsError, match=r"line 2 of .*results\.jsonl.*--fresh"):
        Store(tmp_path, TOY)
