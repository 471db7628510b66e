"""A moving average of a model's weights."""

from __future__ import annotations

from copy import deepcopy

import torch
from torch import nn


class Average:
    r"""A copy of a model that follows its training: $a \leftarrow d a + (1 - d) w$ at each step.

    Buffers are copied. Make it before hooks are put on the model: the copy is only a place for the
    weights, and `torch.func.functional_call` runs the model with them.

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
        >>> average.update()
        >>> average.weights.weight.item()
        0.5
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.model, self.decay = model, decay
        self.weights = deepcopy(model).requires_grad_(False)

    @torch.no_grad()
    def update(self) -> None:
        """Count a step of the model."""
        average, model = tuple(self.weights.parameters()), tuple(self.model.parameters())
        torch._foreach_lerp_(average, model, 1 - self.decay)
        buffers = tuple(self.weights.buffers())
        if buffers:  # PyTorch refuses empty lists
            torch._foreach_copy_(buffers, tuple(self.model.buffers()))
