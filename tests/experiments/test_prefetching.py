"""Batches that a thread makes in advance, and sends to a GPU without waiting."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from atomsep.experiments.prefetching import AHEAD, prefetched, sent

CUDA = torch.device("cuda", 0)


def test_the_next_items_come_from_a_thread_in_order() -> None:
    assert list(prefetched(range(7))) == list(range(7))
    assert list(prefetched(())) == []
    asked: list[int] = []
    items = prefetched(asked.append(n) or [n] for n in range(100))  # type: ignore[func-returns-value]
    assert next(items) == [0]
    items.close()  # type: ignore[attr-defined]
    assert len(asked) <= 2 + AHEAD

    def fail() -> Iterator[int]:
        yield 1
        raise OSError("the disk is gone")

    with pytest.raises(OSError, match="the disk is gone"):
        list(prefetched(fail()))


def test_batches_are_pinned_in_a_thread_and_sent_without_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With stand-ins for the two calls that need a GPU."""
    pinned: list[Tensor] = []
    threads = set()

    def pin(batch: Tensor) -> Tensor:
        threads.add(threading.current_thread())
        pinned.append(batch.clone())
        return pinned[-1]

    def send(batch: Tensor, *where: Any, **how: Any) -> Tensor:
        assert any(batch is each for each in pinned)
        assert (where, how) == ((CUDA,), {"non_blocking": True})
        assert threading.current_thread() not in threads
        return batch

    monkeypatch.setattr(Tensor, "pin_memory", pin)
    monkeypatch.setattr(Tensor, "to", send)
    batches = list(torch.arange(12).split(3))
    found = list(sent(batches, CUDA))
    assert len(pinned) == len(found) == 4
    for before, after in zip(batches, found, strict=True):
        assert torch.equal(before, after)


def test_other_devices_need_no_pinned_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Tensor, "pin_memory", None)
    found = list(sent(torch.arange(4).split(2), torch.device("meta")))
    assert [each.device.type for each in found] == ["meta", "meta"]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_receives_the_batches() -> None:
    batches = torch.randn(6, 5).split(2)
    for before, after in zip(batches, sent(batches, CUDA), strict=True):
        assert after.device == CUDA
        assert torch.equal(before, after.cpu())
