"""A model of two layers and a batch for it, and how many hooks a model has."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def mlp() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Flatten(), nn.Linear(40, 2))


def batch(samples: int = 6) -> Tensor:
    torch.manual_seed(1)
    return torch.randn(samples, 5, 3)


def hooks_of(model: nn.Module) -> int:
    return sum(
        len(m._forward_hooks) + len(m._forward_pre_hooks) + len(m._backward_hooks)
        for m in model.modules()
    )
