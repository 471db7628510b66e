"""Paired comparisons against independent computations."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from atomsep.experiments.sweeps import comparison
from atomsep.experiments.sweeps.comparison import compare, compare_all, deviation, holm, signed_rank

PLAIN = dict(enumerate([0.90, 0.93, 0.95, 0.91, 0.92, 0.90]))
METHOD = dict(enumerate([0.92, 0.92, 0.98, 0.95, 0.97, 0.96]))


def test_t_test_is_the_paired_one() -> None:
    expected = stats.ttest_rel(list(METHOD.values()), list(PLAIN.values()))
    found = compare(PLAIN, METHOD)
    assert found.t == pytest.approx(expected.pvalue, rel=1e-9)
    assert found.difference == pytest.approx(0.19 / 6)
    assert found.low < found.difference < found.high


def test_the_interval_is_that_of_the_formula_and_agrees_with_the_test() -> None:
    differences = np.array([METHOD[seed] - PLAIN[seed] for seed in PLAIN])
    reach = stats.t.ppf(0.975, 5) * differences.std(ddof=1) / math.sqrt(6)
    found = compare(PLAIN, METHOD)
    assert (found.low, found.high) == pytest.approx(
        (differences.mean() - reach, differences.mean() + reach)
    )
    generator = np.random.default_rng(2)
    for _ in range(50):  # 0 is outside where p is below 5 %, and nowhere else
        other = {seed: PLAIN[seed] + generator.normal(0.01, 0.01) for seed in PLAIN}
        each = compare(PLAIN, other)
        assert (each.low <= 0 <= each.high) == (each.t >= 0.05)


def test_signed_rank_test_counts_all_signs() -> None:
    """Exact, by trying every sign of every difference."""
    differences = [0.02, -0.01, 0.03, 0.045, 0.05, 0.06, -0.015]
    ranks = stats.rankdata(np.abs(differences))
    middle = ranks.sum() / 2
    observed = abs(ranks[np.array(differences) > 0].sum() - middle)
    signs = np.array(list(itertools.product((0, 1), repeat=len(ranks))))
    expected = (np.abs(signs @ ranks - middle) >= observed - 1e-9).mean()
    assert signed_rank(differences) == pytest.approx(expected)


def test_holm_is_closed_testing_with_bonferroni() -> None:
    """A hypothesis falls if every set of hypotheses that holds it does: the theorem behind Holm."""
    generator = np.random.default_rng(0)
    for _ in range(20):
        p = list(generator.uniform(size=5) ** 3)
        sets = [s for size in range(1, 6) for s in itertools.combinations(range(5), size)]
        expected = [
            max(min(1.0, len(s) * min(p[j] for j in s)) for s in sets if i in s) for i in range(5)
        ]
        assert holm(p) == pytest.approx(expected)


def test_holm_leaves_out_what_was_not_tested() -> None:
    corrected = holm([0.02, math.nan, 0.01])
    assert corrected[0] == pytest.approx(0.02)
    assert math.isnan(corrected[1])
    assert corrected[2] == pytest.approx(0.02)


def test_the_interval_covers_the_true_mean() -> None:
    generator = np.random.default_rng(1)
    draws = generator.normal(0.3, 1.0, size=(2000, 5))
    intervals = (comparison.t_interval(list(each)) for each in draws)
    covered = sum(low <= 0.3 <= high for low, high in intervals)
    assert 0.935 <= covered / 2000 <= 0.965, covered


def test_few_seeds_have_no_interval_and_no_test() -> None:
    for count in (1, 2):
        found = compare(PLAIN, dict(itertools.islice(METHOD.items(), count)))
        assert len(found.seeds) == count
        assert math.isfinite(found.difference)
        numbers = (found.low, found.high, found.t, found.wilcoxon, found.t_holm)
        assert all(math.isnan(number) for number in numbers)
    assert math.isnan(compare({0: 1.0}, {1: 1.0}).difference)
    assert math.isnan(deviation([0.5]))


def test_no_spread() -> None:
    same = compare(PLAIN, PLAIN)
    assert (same.difference, same.low, same.high, same.t, same.wilcoxon) == (0, 0, 0, 1, 1)
    shifted = compare(PLAIN, {seed: value + 0.1 for seed, value in PLAIN.items()})
    assert (shifted.low, shifted.high) == pytest.approx((0.1, 0.1))
    assert math.isnan(shifted.t), "the t statistic is not defined"
    assert 0 < shifted.wilcoxon < 0.05


def test_only_common_seeds_are_compared() -> None:
    part = {seed: METHOD[seed] for seed in (1, 2, 4)} | {99: 0.0}
    found = compare(PLAIN, part)
    assert found.seeds == (1, 2, 4)
    assert found.difference == pytest.approx((-0.01 + 0.03 + 0.05) / 3)


def test_methods_are_corrected_together() -> None:
    worse = {seed: value - 0.01 * seed for seed, value in PLAIN.items()}
    found = compare_all(PLAIN, {"good": METHOD, "worse": worse})
    p = [each.t for each in found.values()]
    assert [each.t_holm for each in found.values()] == pytest.approx(holm(p))
    assert max(each.t_holm for each in found.values()) > min(p)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_seed_that_is_not_finite_leaves_no_test(value: float) -> None:
    found = compare(PLAIN, {**METHOD, 2: value})
    assert not math.isfinite(found.difference)
    assert all(map(math.isnan, (found.low, found.high, found.t, found.wilcoxon)))
    assert math.isnan(deviation([0.5, value, 0.7]))
