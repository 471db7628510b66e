"""Batches that are made and sent before they are asked for."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

import torch
from torch import Tensor

AHEAD = 2
"""Batches that are made in advance where the data stays in the host's memory."""

T = TypeVar("T")


def prefetched(items: Iterable[T]) -> Iterator[T]:
    """Let a thread make the next items; none of them may be None.

    Example:
        >>> list(prefetched(number**2 for number in range(4)))
        [0, 1, 4, 9]
    """
    made = iter(items)
    with ThreadPoolExecutor(1) as pool:
        waiting: deque[Future[T | None]] = deque()
        for _ in range(AHEAD):
            waiting.append(pool.submit(next, made, None))
        while (item := waiting.popleft().result()) is not None:
            waiting.append(pool.submit(next, made, None))
            yield item


def sent(batches: Iterable[Tensor], device: torch.device) -> Iterator[Tensor]:
    """Batches in the host's memory, on the device of the training.

    For a GPU, a thread makes the next batches and pins them, so that a step does not wait until
    they have arrived.
    """
    if device.type != "cuda":
        return (batch.to(device) for batch in batches)
    pinned = prefetched(batch.pin_memory() for batch in batches)
    return (batch.to(device, non_blocking=True) for batch in pinned)
