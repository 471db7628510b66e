"""Recognises a GAN that has broken down, from its lines of metrics.

Three signs, any of which is enough:

- The discriminator's loss, the sum of its two cross-entropies, stayed near 0: it tells every image
  apart, and the generator learns nothing more. The undecided discriminator has 2 log 2 = 1.39.
  Healthy DCGANs on MNIST had means of 0.12 and more over every epoch, broken ones 0.0001 to 0.007.
  One step in fifty in which the generator fools the discriminator as usual (0.5) is enough to lift
  the mean above the threshold of 0.01. At the start the discriminator wins for some dozens of
  steps, so only means over at least 500 steps count.
- The metric became ten times worse than the best before it. From one evaluation to the next a
  healthy GAN's distance changes by a third, and that of a GAN that merely got worse rose by a
  factor of 2 to 4 over a whole run.
- The metric was never above a floor, where it has one: a count of modes of at most 1 % shows a
  generator that has collapsed before its first evaluation. A distance has no such bound: how large
  it may be depends on the images and the features.

The figures are those of `benchmarks/results/first_runs/mnist_gan_epochs.csv`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

NEAR_ZERO = 0.01
"""A discriminator whose mean loss is below this has won."""

LONG_ENOUGH = 500
"""Steps over which the loss must be that low, or after which the metric must not be."""

WORSE = 10
"""Factor between the best value of a metric and a later one after which a run has broken down."""


def find_breakdown(
    lines: Sequence[Mapping[str, Any]],
    metric: str,
    higher_is_better: bool,
    floor: float = -math.inf,
) -> str | None:
    """A sentence that says when and how a run broke down first, or None.

    Args:
        lines: the lines of metrics of the whole run, in order.
        metric: the metric to go by.
        higher_is_better: whether larger values of it are better.
        floor: if larger values are better, the largest that only broken runs never exceed.

    Example:
        >>> lines = [{"step": n, "metrics": {"fid": d}} for n, d in ((1000, 300), (2000, 25))]
        >>> find_breakdown(lines, "fid", False)
        >>> find_breakdown([*lines, {"step": 3000, "metrics": {"fid": 260}}], "fid", False)
        'fid went from 25 after 2000 steps to 260 after 3000'
    """
    best: tuple[float, int] | None = None
    seen, since, total = 0, 0, 0.0
    for line in lines:
        step = int(line["step"])
        total += line.get("discriminator", 1.0) * (step - seen)
        seen = step
        if step - since >= LONG_ENOUGH:
            mean = total / (step - since)
            if mean < NEAR_ZERO:
                return f"the discriminator's loss was {mean:.2g} from step {since} to {step}"
            since, total = step, 0.0
        if metric not in line.get("metrics", {}):
            continue
        value = float(line["metrics"][metric])
        if math.isnan(value):  # nothing is better or worse than it
            continue
        if best is not None:
            low, high = (value, best[0]) if higher_is_better else (best[0], value)
            if high > WORSE * low:
                before, when = best
                return f"{metric} went from {before:g} after {when} steps to {value:g} after {step}"
        if best is None or (value > best[0]) == higher_is_better:
            best = value, step
    if higher_is_better and best is not None and best[0] <= floor and seen >= LONG_ENOUGH:
        return f"{metric} was never above {best[0]:g} in {seen} steps"
    return None
