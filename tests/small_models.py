"""Small models and a batch, how many hooks a model has, and which layout was decided."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from atomsep import Attachment


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


class Net(nn.Module):
    """One layer between two of others' making."""

    def __init__(self, before: nn.Module, layer: nn.Module) -> None:
        super().__init__()
        self.before, self.layer = before, layer

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(self.before(x))  # type: ignore[no-any-return]


def decided(attachment: Attachment) -> str:
    return repr(attachment).split("layer: ")[1]
