"""How the learning rate changes in the course of a training."""

from __future__ import annotations

import math
from collections.abc import Callable

SCHEDULES: dict[str, Callable[[float], float]] = {
    "constant": lambda done: 1.0,
    "linear": lambda done: 1 - done,
    "cosine": lambda done: (1 + math.cos(math.pi * done)) / 2,
    "thirds": lambda done: 0.1 ** math.floor(3 * done + 1e-9),
}
"""Factors of the learning rate, as functions of the share of the training that is done."""


def scheduled(name: str, done: float, warmup: float = 0.0) -> float:
    """The factor of the learning rate, which first rises linearly over the share `warmup`.

    Example:
        >>> [scheduled("linear", done, warmup=0.5) for done in (0.25, 0.5, 0.75)]
        [0.5, 1.0, 0.5]
    """
    if done < warmup:
        return done / warmup
    return SCHEDULES[name]((done - warmup) / (1 - warmup))
