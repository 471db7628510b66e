"""What PyTorch's operations do to axes: the nodes of an autograd graph, read backwards.

An axis of a tensor is written as a product of `(axis of the output, size)`, where the output is the
tensor from which a walk started. Views split and join axes, so there may be several factors.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Any

from torch import nn

Factors = tuple[tuple[int, int], ...]
"""An axis of a tensor."""

SUMMED = -1
"""The label of an axis that an operation sums over, which is no axis of the output."""

SUM: Factors = ((SUMMED, 0),)
"""An axis that is summed over, whatever its size."""

NORMS = {
    "NativeLayerNorm": (-1, "a layer norm"),
    "FusedRmsNorm": (-1, "an RMS norm"),
    "NativeBatchNorm": (1, "a batch norm"),
    "CudnnBatchNorm": (1, "a batch norm"),
    "MiopenBatchNorm": (1, "a batch norm"),
    "SyncBatchNormBackward": (1, "a batch norm"),
    "NativeGroupNorm": (1, "a group norm"),
    "Embedding": (-1, "an embedding"),
    "CudnnRnn": (-1, "a recurrent layer"),
    "MkldnnRnnLayer": (-1, "a recurrent layer"),
}
"""Operations whose features are on one axis for certain, with that axis."""

PRODUCTS = {"Mm", "Addmm", "Bmm", "Baddbmm", "Linear", "Convolution"}

_VIEWS = {"View", "UnsafeView", "ReshapeAlias", "Squeeze", "Unsqueeze"}

_SAME_NUMBERS = {*_VIEWS, "Alias", "Expand", "Permute", "Slice", "T", "ToCopy", "Transpose"}

_RESIZING = {
    *("Slice", "Narrow", "Split", "SplitWithSizes", "UnsafeSplit", "UnsafeSplitWithSizes"),
    *("ConstantPadNd", "Glu", "IndexSelect"),
    *("MaxPool2DWithIndices", "AvgPool2D", "AdaptiveAvgPool2D", "AdaptiveMaxPool2D"),
    *("ReflectionPad1D", "ReflectionPad2D", "ReplicationPad1D", "ReplicationPad2D"),
    *("UpsampleNearest1D", "UpsampleNearest2D", "UpsampleNearest3D", "UpsampleBilinear2D"),
    *("UpsampleBicubic2D", "UpsampleLinear1D", "MaxPool3DWithIndices", "AvgPool3D"),
}
"""Operations that keep the axes in place and change the size of some."""

POINTWISE = {
    *("Add", "Sub", "Rsub", "Mul", "Div", "Addcmul", "Addcdiv", "Lerp", "Where", "MaskedFill"),
    *("Maximum", "Minimum", "Neg", "Abs", "Exp", "Log", "Sqrt", "Rsqrt", "Pow", "Sin", "Cos"),
    *("Relu", "LeakyRelu", "PreluKernel", "RreluWithNoise", "Elu", "Celu", "Gelu", "Silu", "Mish"),
    *("Tanh", "Sigmoid", "LogSigmoid", "Hardswish", "Hardsigmoid", "Hardtanh", "Hardshrink"),
    *("Softplus", "Softshrink", "Threshold", "Clamp", "ClampMin", "ClampMax", "Erf", "Softmax"),
    *("LogSoftmax", "NativeDropout", "Clone", "ToCopy", "Alias", "Roll", "Flip"),
    *("Cumsum", "torch::autograd::CopyBackwards", "_AtomsBackward"),
}
"""Operations on each number, or along an axis, which keep all axes.

`_AtomsBackward` is the node of another attachment.
"""


def moves(
    node: Any, name: str, output: int, axes: list[Factors]
) -> Iterator[tuple[int, list[Factors]]]:
    """The inputs of an operation that keeps or moves axes, with their axes."""
    edges = node.next_functions
    here = tuple(prod(size for _, size in axis) for axis in axes)
    if name in POINTWISE:
        for index, (source, number) in enumerate(edges):
            if source is not None and shape_of(source, number) == here:
                yield index, axes
    elif name.startswith("ScaledDotProduct"):
        yield 2, [*axes[:-2], SUM, axes[-1]]
        yield 0, [*axes[:-1], SUM]
    elif name == "Cat":
        yield from ((index, axes) for index in range(len(edges)))
    elif name == "Stack":
        rest = list(axes)
        rest.pop(_signed(node._saved_dim) % len(axes))
        yield from ((index, rest) for index in range(len(edges)))
    elif name == "BackwardHookFunctionBackward":  # hooks on gradients, which return their inputs
        yield output, axes
    elif edges and edges[0][0] is not None:
        shape = shape_of(*edges[0])
        moved: list[Factors] | None = None
        if name in ("Transpose", "T"):
            first, second = (0, 1) if name == "T" else (node._saved_dim0, node._saved_dim1)
            first, second = _signed(first) % len(axes), _signed(second) % len(axes)
            moved = list(axes)
            moved[first], moved[second] = axes[second], axes[first]
        elif name == "Permute":
            moved = [()] * len(axes)
            for here_axis, axis in enumerate(node._saved_dims):
                moved[_signed(axis) % len(axes)] = axes[here_axis]
        elif name in _VIEWS:
            moved = _regrouped(axes, shape)
        elif name in _RESIZING:
            moved = axes
        elif name == "Expand":
            moved = axes[len(axes) - len(shape) :]
        elif name in ("Select", "Unbind"):
            axis = _signed(node._saved_dim) % len(shape)
            moved = [*axes[:axis], ((SUMMED, shape[axis]),), *axes[axis:]]
        if moved:
            yield 0, moved


def _regrouped(axes: list[Factors], shape: tuple[int, ...]) -> list[Factors] | None:
    """The factors of all axes in order, dealt out to axes of another shape."""
    waiting = [factor for axis in axes for factor in axis if factor[1] > 1][::-1]
    regrouped: list[Factors] = []
    for size in shape:
        taken: list[tuple[int, int]] = []
        while size > 1:
            if not waiting:
                return None
            label, available = waiting.pop()
            if size % available and available % size:
                return None
            share = min(size, available)
            if share < available:
                waiting.append((label, available // share))
            taken.append((label, share))
            size //= share
        regrouped.append(tuple(taken))
    return None if waiting else regrouped


def fitted(axes: list[Factors], shape: tuple[int, ...]) -> list[Factors] | None:
    """The same axes with other sizes; None if an axis of several factors changes."""
    if len(axes) != len(shape):
        return None
    fitted: list[Factors] = []
    for axis, size in zip(axes, shape, strict=True):
        same = prod(each for _, each in axis) == size
        if not same and len(axis) > 1:
            return None
        fitted.append(axis if same else ((axis[0][0] if axis else SUMMED, size),))
    return fitted


def operation(node: Any) -> str:
    """The operation of a node: "Relu" for `ReluBackward0`. Only PyTorch's own end in a digit."""
    name: str = node.name()
    plain = name.rstrip("0123456789")
    return name if plain == name else plain.removesuffix("Backward")


def shape_of(node: Any, output: int) -> tuple[int, ...]:
    """The shape of what a node returned in the forward pass."""
    if is_leaf(node):
        return tuple(node.variable.shape)
    return tuple(node._input_metadata[output].shape)


def is_leaf(node: Any) -> bool:
    """Whether a node stands for a tensor that no operation returned, as a parameter."""
    name: str = node.name()
    return name.endswith("AccumulateGrad")


def is_parameter(node: Any) -> bool:
    """Whether a node returned a parameter, cast or viewed at most."""
    for _ in range(8):
        if node is None or is_leaf(node):
            break
        if operation(node) not in _SAME_NUMBERS:
            return False
        node = node.next_functions[0][0]
    return node is not None and isinstance(getattr(node, "variable", None), nn.Parameter)


def _signed(axis: int) -> int:
    """Autograd shows negative axes as unsigned numbers."""
    return axis - 2**64 if axis >= 2**63 else axis
