"""Methods compared with the plain one, paired by seed.

The interval is Student's, and the p values are those of the paired t test, which agrees with it,
and of Wilcoxon's signed-rank test, two-sided, each with Holm's correction for the number of methods
that an experiment compares. With the five or ten seeds that are usual here, a bootstrap would be
too narrow.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import mean, stdev

ENOUGH = 3
"""Seeds that an interval and a test need."""

CONFIDENCE = 0.95

Values = Mapping[int, float]
"""A metric by seed."""


@dataclass(frozen=True)
class Comparison:
    """Paired differences, a method minus plain; NaN where they are too few or have no spread.

    Attributes:
        seeds: the seeds that both have; no others are compared.
        difference: mean over the seeds.
        low: lower end of the 95 % confidence interval of the mean.
        high: upper end.
        t: p value of the paired t test.
        wilcoxon: p value of the signed-rank test.
        t_holm: `t`, corrected for the number of methods compared.
        wilcoxon_holm: `wilcoxon`, corrected likewise.
    """

    seeds: tuple[int, ...]
    difference: float
    low: float
    high: float
    t: float
    wilcoxon: float
    t_holm: float
    wilcoxon_holm: float


def compare(plain: Values, method: Values) -> Comparison:
    """Compare two methods over the seeds that both have.

    Example:
        >>> result = compare({0: 0.90, 1: 0.91, 2: 0.92}, {0: 0.92, 1: 0.93, 2: 0.93, 3: 0.5})
        >>> len(result.seeds), round(result.difference, 4), round(result.t, 4)
        (3, 0.0167, 0.0377)
    """
    seeds = tuple(sorted(plain.keys() & method.keys()))
    # Rounded, so that differences that are equal except for rounding count as ties.
    differences = [round(method[seed] - plain[seed], 12) for seed in seeds]
    low = high = t = wilcoxon = math.nan
    if len(seeds) >= ENOUGH and all(map(math.isfinite, differences)):
        low, high = t_interval(differences)
        t, wilcoxon = t_test(differences), signed_rank(differences)
    average = mean(differences) if seeds else math.nan
    return Comparison(seeds, average, low, high, t, wilcoxon, t, wilcoxon)


def compare_all(plain: Values, methods: Mapping[str, Values]) -> dict[str, Comparison]:
    """Compare every method with the plain one, and correct the p values for their number."""
    each = {name: compare(plain, values) for name, values in methods.items()}
    t = holm([comparison.t for comparison in each.values()])
    wilcoxon = holm([comparison.wilcoxon for comparison in each.values()])
    return {
        name: replace(comparison, t_holm=t[place], wilcoxon_holm=wilcoxon[place])
        for place, (name, comparison) in enumerate(each.items())
    }


def holm(p_values: Sequence[float]) -> list[float]:
    """Correct p values for their number by Holm's method; NaN stays and is not counted.

    The k-th smallest of m is multiplied by m - k + 1, and none becomes smaller than one before it.

    Example:
        >>> [round(p, 3) for p in holm([0.01, 0.04, 0.03])]
        [0.03, 0.06, 0.06]
    """
    corrected = list(p_values)
    known = [place for place, p in enumerate(p_values) if not math.isnan(p)]
    places = sorted(known, key=p_values.__getitem__)
    largest = 0.0
    for rank, place in enumerate(places):
        largest = max(largest, min(1.0, (len(places) - rank) * p_values[place]))
        corrected[place] = largest
    return corrected


def t_interval(differences: Sequence[float]) -> tuple[float, float]:
    """Ends of the confidence interval of the mean; the mean itself if there is no spread."""
    from scipy import stats

    if len(set(differences)) == 1:
        return differences[0], differences[0]
    interval = stats.ttest_1samp(differences, 0).confidence_interval(CONFIDENCE)
    return float(interval.low), float(interval.high)


def t_test(differences: Sequence[float]) -> float:
    """Two-sided p value of the paired t test: 1 if nothing differs, NaN if all differ alike."""
    from scipy import stats

    if len(set(differences)) == 1:
        return math.nan if differences[0] else 1.0
    return float(stats.ttest_1samp(differences, 0).pvalue)


def signed_rank(differences: Sequence[float]) -> float:
    """Two-sided p value of Wilcoxon's signed-rank test: 1 if nothing differs."""
    from scipy import stats

    if not any(differences):
        return 1.0
    with warnings.catch_warnings():  # few seeds, or ties among them: no exact distribution
        warnings.simplefilter("ignore")
        return float(stats.wilcoxon(differences).pvalue)


def deviation(values: Iterable[float]) -> float:
    """Standard deviation over seeds; NaN for a single one, or if one is not finite."""
    numbers = list(values)
    usable = len(numbers) > 1 and all(map(math.isfinite, numbers))
    return stdev(numbers) if usable else math.nan
