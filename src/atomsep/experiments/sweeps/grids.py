"""The next value of a setting to try, from the scores of those that were tried.

A grid whose best value lies at an end is continued there, geometrically and by its own ratio. A
value inside is refined: the next one lies between the best and its better neighbour.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence

EXTRA = 3
"""Values that a search adds at each end of a grid, at most."""

Scores = Mapping[float, float]
"""The score of each value; more is better, and a value that failed has minus infinity."""


def best_of(scores: Scores) -> float | None:
    """The value with the highest score, the first among equals; None if all have failed.

    Example:
        >>> best_of({0.1: 0.7, 0.2: 0.9, 0.5: 0.9})
        0.2
    """
    best = max(scores, key=scores.__getitem__, default=None)
    return None if best is None or scores[best] == -math.inf else best


def end_of(value: float | None, tried: Collection[float | None]) -> str:
    """The end of all values tried at which one lies: "smallest", "largest" or "".

    Example:
        >>> end_of(0.1, (0.1, 0.2)), end_of(0.1, (0.1,))
        ('smallest', '')
        >>> end_of(0.0, (0.0, 0.2))  # nothing lies beyond
        ''
    """
    values = sorted(each for each in set(tried) if each is not None)
    if len(values) < 2 or value not in (values[0], values[-1]) or value == 0:
        return ""
    return "largest" if value == values[-1] else "smallest"


def beyond(grid: Sequence[float], scores: Scores) -> float | None:
    """The value after the best one if that lies at an end; None inside, or after `EXTRA` values.

    Args:
        grid: the first values, whose ratio at that end is kept; two must be positive.
        scores: the scores of all values.

    Example:
        >>> beyond((0.1, 0.2, 0.5), {0.1: 0.7, 0.2: 0.8, 0.5: 0.9})
        1.25
        >>> beyond((0.0, 0.1, 0.2), {0.0: 0.9, 0.1: 0.8, 0.2: 0.7}) is None
        True
    """
    best = best_of(scores)
    end = end_of(best, scores)
    positive = sorted(value for value in set(grid) if value > 0)
    if not end or best is None or len(positive) < 2:
        return None
    last, before = positive[:2] if end == "smallest" else positive[:-3:-1]
    added = [value for value in scores if (value - last) * (last - before) > 0 and value > 0]
    return _rounded(best * last / before) if len(added) < EXTRA else None


def between(scores: Scores) -> float | None:
    """The geometric mean of the best value and the better of its neighbours; None without any.

    Example:
        >>> between({0.1: 0.7, 0.4: 0.9, 1.6: 0.8})
        0.8
    """
    best, values = best_of(scores), sorted(scores)
    if best is None or len(values) < 2:
        return None
    place = values.index(best)
    neighbours = values[max(0, place - 1) : place] + values[place + 1 : place + 2]
    near = max(neighbours, key=scores.__getitem__)
    value = _rounded(math.sqrt(best * near) or (best + near) / 2)  # the mean, where one is 0
    return None if value in scores else value


def _rounded(value: float) -> float:
    """Four digits, so that 0.1 * 0.5 / 0.2 is written as 0.25."""
    return float(f"{value:.4g}")
