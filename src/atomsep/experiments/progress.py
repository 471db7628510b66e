"""The progress of a run: who receives it, how losses are averaged, and how it is stopped."""

from __future__ import annotations

import signal
import threading
import types
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

    from atomsep.experiments.runs import RunKey


class Listener:
    """Receives the progress of a run. This base class ignores it."""

    def decoded(self, done: int, total: int) -> None:
        """Images are decoded before training starts, with `done` of `total` done."""

    def started(self, key: RunKey, done: int, total: int) -> None:
        """Training starts or continues, with `done` of `total` steps done."""

    def few_evaluations(self, number: int, wanted: int) -> None:
        """The run has fewer evaluations than its result is to be the mean of."""

    def strength(self, shares: Mapping[str, float], step: int) -> None:
        """The method's gradient over the task's at the layer, in this step of the whole run."""

    def no_strength(self, why: str) -> None:
        """Why the first step shows no such share, as a sentence."""

    def progressed(self, done: int, total: int, parts: Mapping[str, float], rate: float) -> None:
        """Steps done, means of the loss's parts, and samples per second."""

    def evaluated(self, epoch: int, step: int, metrics: Mapping[str, float]) -> None:
        """Metrics in an epoch or at its end, after so many steps of the whole run."""


READ_EVERY = 0.5
"""Seconds between two readings of the loss; each waits for the device."""


class Meter:
    """Means of the loss's parts over some steps, without waiting for the device."""

    def __init__(self) -> None:
        self.sums: dict[str, Tensor] = {}
        self.count = 0

    def add(self, parts: Mapping[str, Tensor]) -> None:
        """Count one step."""
        for name, value in parts.items():
            value = value.float() if value.device.type == "mps" else value.double()
            # A copy, because a graph leaves the next step's value in the same place.
            self.sums[name] = self.sums[name] + value if name in self.sums else value.clone()
        self.count += 1

    def means(self) -> dict[str, float]:
        """Mean of every part so far."""
        return {name: float(total) / self.count for name, total in self.sums.items()}

    def state(self) -> dict[str, Any]:
        """The meter's part of a checkpoint."""
        return {"sums": self.sums, "count": self.count}

    def load(self, state: dict[str, Any]) -> None:
        """Continue from a checkpoint."""
        self.sums, self.count = dict(state["sums"]), int(state["count"])


@contextmanager
def interruptible() -> Iterator[threading.Event]:
    """The first Ctrl-C sets the event, so that a step is finished; a second one interrupts it."""
    event = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield event
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def stop(number: int, frame: types.FrameType | None) -> None:
        event.set()
        for each, handler in before.items():
            signal.signal(each, handler)

    for number in before:
        signal.signal(number, stop)
    try:
        yield event
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
