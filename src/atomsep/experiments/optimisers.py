"""Optimisers in the form that is fastest on the device, and their learning rates."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

import torch
from torch import Tensor

from atomsep.experiments.task import Context

Kind = TypeVar("Kind", bound=torch.optim.Optimizer)


def make_optimiser(
    kind: type[Kind],
    parameters: Iterable[Any],
    context: Context,
    learning_rate: float | None = None,
    **options: Any,
) -> Kind:
    """An optimiser that is fused on a GPU, and fit for a graph if that is set.

    Args:
        kind: SGD, Adam or AdamW.
        parameters: parameters, or groups of them.
        context: settings and device.
        learning_rate: by default the settings'.
        **options: the optimiser's other arguments.
    """
    settings, device = context.settings, context.fabric.device
    rate: Any = settings.learning_rate if learning_rate is None else learning_rate
    # A loss scale needs the gradients unscaled before they are clipped, which fused ones refuse.
    if device.type == "cuda" and settings.precision != "16-mixed":
        options["fused"] = True
        if settings.graph:
            rate = torch.tensor(rate, device=device)  # a graph reads it where it is
            if kind is not torch.optim.SGD:
                options["capturable"] = True
    return kind(parameters, lr=rate, **options)  # type: ignore[call-arg]


def set_rate(optimiser: torch.optim.Optimizer, rate: float) -> None:
    """Set the learning rate of all parameters."""
    for group in optimiser.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate
