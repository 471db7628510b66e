"""A moving average of a model's weights."""

from __future__ import annotations

from copy import deepcopy

import torch
from torch import Tensor, nn


class Average:
    r"""A copy of a model that follows its training: $a \leftarrow d a + (1 - d) w$ at each step.

    In the first steps d is smaller, (1 + t) / (10 + t), so that the untrained weights are soon
    forgotten. Buffers that belong to the model's state are copied. Make it before hooks are put on
    the model: the copy is only a place for the weights, and `torch.func.functional_call` runs the
    model with them.

    Args:
        model: the model that is trained.
        decay: share of the average that stays at each step.

    Attributes:
        weights: a model of the same kind, which holds the averages.

    Example:
        >>> model = nn.Linear(1, 1)
        >>> _ = nn.init.zeros_(model.weight)
        >>> average = Average(model, decay=0.5)
        >>> _ = nn.init.ones_(model.weight)
        >>> average.after(1000)
        >>> average.update()
        >>> average.weights.weight.item()
        0.5
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.model, self.decay = model, decay
        self.weights = deepcopy(model).requires_grad_(False)
        self.rate = torch.zeros(())
        self.state = set(model.state_dict())

    def to(self, like: Tensor) -> None:
        """Move to the device and type of a tensor."""
        self.weights.to(like)
        self.rate = self.rate.to(like)

    def after(self, steps: int) -> None:
        """Set d for the step that follows so many; where a CUDA graph of `update` reads it."""
        self.rate.fill_(1 - min(self.decay, (1 + steps) / (10 + steps)))

    @torch.no_grad()
    def update(self) -> None:
        """Count a step of the model."""
        average, model = tuple(self.weights.parameters()), tuple(self.model.parameters())
        change = torch._foreach_sub(model, average)
        torch._foreach_mul_(change, self.rate)
        torch._foreach_add_(average, change)
        buffers = zip(self.weights.named_buffers(), self.model.buffers(), strict=True)
        for (name, held), buffer in buffers:
            if name in self.state:
                held.copy_(buffer)
