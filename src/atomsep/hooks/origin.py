"""Layers whose output the backward pass can recompute, so that nobody has to keep it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.module import _global_forward_hooks

from atomsep.core.origin import Affine, Origin
from atomsep.core.saving import saved_through_hooks

LARGE = 1 << 25
"""Bytes up to which an output is kept as it is: below that, host time matters more."""


def find_origin(
    layer: nn.Module, hook: Callable[..., Any], args: Any, output: Tensor
) -> Origin | None:
    """What the output was computed from, as a hook on the layer finds it.

    None where that is not certain (an overridden forward, parametrised weights, another hook
    before this one) or where the layer does not keep its input (in eval mode, or under hooks on
    saved tensors, as in checkpointing and offloading).
    """
    norms = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
    if output.nbytes <= LARGE or type(layer) not in norms:
        return None
    if getattr(layer.forward, "__func__", None) is not type(layer).forward:
        return None
    if next(iter(layer._forward_hooks.values()), None) is not hook or _global_forward_hooks:
        return None
    node = output.grad_fn
    if node is None or not node.name().endswith("BatchNormBackward0"):
        return None
    if saved_through_hooks() is not False:  # nor where torch does not tell
        return None
    mean = getattr(node, "_saved_result1", None)
    inverse_deviation = getattr(node, "_saved_result2", None)
    if mean is None or inverse_deviation is None or mean.shape != output.shape[1:2]:
        return None
    if len(args) != 1:  # passed by keyword, which hooks do not see
        return None
    [source] = args
    if source.dtype != output.dtype or source.stride() != output.stride():
        return None
    assert isinstance(layer, norms)
    bias: Tensor | None = layer.bias
    affine = Affine(layer.weight, bias, layer.eps, 0 if bias is None else bias._version)
    return Origin(source, mean, inverse_deviation, affine)
