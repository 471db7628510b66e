"""Threads that share a model do not see each other's forwards."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import atomsep

STEPS, SAMPLES, LENGTH = 40, 3, 4


class Model(nn.Module):
    def __init__(self, checkpointed: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear, self.checkpointed = nn.Linear(3, 6), checkpointed

    def forward(self, x: Tensor, attention_mask: Tensor) -> Tensor:
        if self.checkpointed:
            return checkpoint(self.linear, x, use_reentrant=False).relu_().mean()
        return self.linear(x).relu_().mean()


def batches(thread: int) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(thread)
    inputs = torch.randn(STEPS, SAMPLES, LENGTH, 3, generator=generator).unbind()
    lengths = torch.randint(1, LENGTH + 1, (STEPS, SAMPLES, 1), generator=generator)
    return list(zip(inputs, (torch.arange(LENGTH) < lengths).unbind(), strict=True))


def run(
    model: nn.Module, attachment: Any, thread: int, wait: Callable[[], object]
) -> list[tuple[float, Tensor, dict[str, float], Tensor]]:
    """Loss, importance, stats and gradient of each batch; `wait` comes after each forward."""
    results = []
    for x, mask in batches(thread):
        task = model(x, mask)
        wait()
        loss = attachment.loss()
        wait()
        [gradient] = torch.autograd.grad(task + loss, [model.linear.weight])
        results.append((loss.item(), attachment.importance, attachment.stats, gradient))
    return results


@pytest.mark.parametrize("kind", ["plain", "checkpointed", "learned maps"])
def test_two_threads_get_their_own_losses(kind: str) -> None:
    """Checkpointed, learned maps read the mask again: that of another thread would be wrong."""
    model, criterion = Model(checkpointed=kind != "plain"), None
    if kind == "learned maps":
        criterion = atomsep.AtomLoss(charge=nn.Linear(6, 1), position=nn.Linear(6, 2))
    attachment = atomsep.attach(model, "linear", criterion, weight=1.0)
    alone = [run(model, attachment, thread, lambda: None) for thread in range(2)]
    barrier = threading.Barrier(2, timeout=60)
    with ThreadPoolExecutor(2) as pool:
        together = pool.map(lambda thread: run(model, attachment, thread, barrier.wait), range(2))
        for found, expected in zip(together, alone, strict=True):
            torch.testing.assert_close(found, expected)


def test_a_thread_that_did_not_run_the_model_is_told() -> None:
    model = Model()
    attachment = atomsep.attach(model, "linear")
    model(*batches(0)[0])
    with ThreadPoolExecutor(1) as pool:
        for ask in (attachment.loss, lambda: attachment.importance, lambda: attachment.stats):
            with pytest.raises(RuntimeError, match="has not run in this thread"):
                pool.submit(ask).result()
    attachment.loss()


def test_detaching_drops_what_every_thread_holds() -> None:
    model = Model()
    attachment = atomsep.attach(model, "linear")
    with ThreadPoolExecutor(1) as pool:
        pool.submit(model, *batches(0)[0]).result()
        copied = copy.deepcopy(model)
        attachment.detach()
        with pytest.raises(RuntimeError, match="was detached"):
            pool.submit(attachment.loss).result()
        [other] = atomsep.attachments(copied)
        with pytest.raises(RuntimeError, match="has not run"):
            pool.submit(other.loss).result()
