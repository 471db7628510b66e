"""The mean of several losses, and the loss of a layer that has none."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def mean_of(losses: list[Tensor]) -> Tensor:
    """The mean of scalars, on the device of the last one."""
    if len(losses) == 1:
        return losses[0]
    device = losses[-1].device
    return torch.stack([loss.to(device) for loss in losses]).mean()


def zero_loss(layer: nn.Module, model: nn.Module) -> Tensor:
    """A zero on the layer's device that can be differentiated where gradients are enabled.

    It depends on no parameter. It need not: a layer that did not run has no gradient from the task
    either, and data-parallel wrappers have to expect that anyway (`find_unused_parameters=True`).
    """
    parameters = (p for module in (layer, model) for p in module.parameters())
    device = next((p.device for p in parameters), torch.device("cpu"))
    graph = torch.is_grad_enabled() and not torch.compiler.is_compiling()
    return torch.zeros((), device=device, requires_grad=graph)
