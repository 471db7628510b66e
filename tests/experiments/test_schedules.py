"""Schedules of the learning rate against PyTorch's and those of transformers."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from atomsep.experiments.schedules import scheduled


def rates(scheduler: torch.optim.lr_scheduler.LRScheduler, epochs: int) -> list[float]:
    found = []
    for _ in range(epochs):
        found.append(scheduler.get_last_lr()[0])
        scheduler.optimizer.step()
        scheduler.step()
    return found


def optimiser() -> torch.optim.Optimizer:
    return torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)


def test_thirds_are_the_steps_of_imagenets_recipe() -> None:
    expected = rates(torch.optim.lr_scheduler.StepLR(optimiser(), 30, 0.1), 90)
    assert [scheduled("thirds", epoch / 90) for epoch in range(90)] == pytest.approx(expected)


def test_the_cosine_is_pytorchs() -> None:
    expected = rates(torch.optim.lr_scheduler.CosineAnnealingLR(optimiser(), 40), 40)
    assert [scheduled("cosine", epoch / 40) for epoch in range(40)] == pytest.approx(expected)


def test_the_linear_schedule_is_transformers_with_its_warmup() -> None:
    from transformers import get_linear_schedule_with_warmup

    expected = rates(get_linear_schedule_with_warmup(optimiser(), 5, 50), 50)
    found = [scheduled("linear", step / 50, warmup=0.1) for step in range(50)]
    assert found == pytest.approx(expected)
