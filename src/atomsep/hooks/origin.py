"""Layers whose output can be computed again in the backward pass, so that nobody has to keep it.

The gradient needs the layer's output as it was. Where the model overwrites it or lets it go, as
with a batch norm before a ReLU, that is a latent of memory more, and the time to write it. But a
batch norm keeps its input for its own backward pass, and its output is a factor and a shift a
channel away from that.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.module import _global_forward_hooks

LARGE = 1 << 25
"""Bytes up to which an output is kept as it is: there the host's time counts more."""


class Affine(NamedTuple):
    """What a batch norm does after it has normalised, and eps."""

    weight: Tensor | None
    bias: Tensor | None
    eps: float
    version: int

    def normalize(self, source: Tensor) -> Tensor:
        """The output of the layer in training, differentiable.

        Raises:
            RuntimeError: the bias is no longer what it was. (The layer's own gradient needs the
                weight, and autograd sees to that.)
        """
        if self.bias is not None and self.bias._version != self.version:
            raise RuntimeError(
                "the bias of a batch norm with atom modeling was modified in place between the "
                "forward pass and a backward pass with create_graph=True; step the optimiser after"
            )
        return F.batch_norm(source, None, None, self.weight, self.bias, training=True, eps=self.eps)


class Origin(NamedTuple):
    """What a batch norm in training made its output of.

    Attributes:
        source: its input.
        mean: of the batch, by channel.
        inverse_deviation: one over its standard deviation, by channel.
        affine: what came then.
    """

    source: Tensor
    mean: Tensor
    inverse_deviation: Tensor
    affine: Affine

    def line(self) -> tuple[Tensor, Tensor]:
        """Stretch and shift by channel that make the output of the source, in float32."""
        weight, bias = self.affine[:2]
        mean, stretch = self.mean.float(), self.inverse_deviation.float()
        if weight is not None:
            stretch = stretch * weight
        if bias is None:
            return stretch, -mean * stretch
        return stretch, torch.addcmul(bias.float(), mean, stretch, value=-1)


def find_origin(
    layer: nn.Module, hook: Callable[..., Any], args: Any, output: Tensor
) -> Origin | None:
    """What the output was made of, as a hook on the layer finds it.

    None where that is not certain (a forward of its own, parametrised weights, another hook before
    this one) or not kept anyway (in eval mode, or under hooks on saved tensors, as in
    checkpointing and offloading).
    """
    if output.nbytes <= LARGE:
        return None
    if type(layer) not in (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d):
        return None
    if getattr(layer.forward, "__func__", None) is not type(layer).forward:
        return None
    if next(iter(layer._forward_hooks.values()), None) is not hook or _global_forward_hooks:
        return None
    node = output.grad_fn
    if node is None or not node.name().endswith("BatchNormBackward0") or _saved_by_hooks():
        return None
    mean = getattr(node, "_saved_result1", None)
    inverse_deviation = getattr(node, "_saved_result2", None)
    if mean is None or inverse_deviation is None or mean.shape != output.shape[1:2]:
        return None
    if len(args) != 1:  # it came by name, and hooks are not told
        return None
    [source] = args
    if source.dtype != output.dtype or source.stride() != output.stride():
        return None
    assert isinstance(layer, nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d)
    bias: Tensor | None = layer.bias
    affine = Affine(layer.weight, bias, layer.eps, 0 if bias is None else bias._version)
    return Origin(source, mean, inverse_deviation, affine)


def _saved_by_hooks() -> bool:
    """Whether tensors are saved by other means; also where torch does not tell."""
    look = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", None)
    return look is None or look(True) is not None
