"""Which operation shaped a tensor, read from its autograd graph.

Autograd knows what a layer's modules do not tell. From a tensor's `grad_fn` we walk back through
operations that keep or move axes, and follow where each axis of the tensor comes from, until an
operation says which axis holds features: a norm, an embedding, a parameter with one axis, a
convolution or a matrix product.

A matrix product alone is not proof. In an MLP-Mixer it mixes tokens, so that they look like
features. So the walk goes on past it: what feeds it must hold its features on the axis that the
product sums over.

Nothing is computed, and no saved tensor is touched: under checkpointing that would recompute.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from torch import Tensor, nn

Factors = tuple[tuple[int, int], ...]
"""An axis as a product of `(axis of the output, size)`; views split and join axes."""

SUMMED = -1
"""The label of an axis that an operation sums over, which is no axis of the output."""

_SUM: Factors = ((SUMMED, 0),)

_STEPS = 300
_DEPTH = 120


@dataclass(frozen=True)
class Shaping:
    """What the graph says about the axes of a tensor.

    Attributes:
        features: the axis that holds the features; None if operations contradict each other.
        by: the operation that says so, for messages.
        samples: the axis that holds the samples, where the operation tells.
        folded: whether the axis of the samples holds more than samples, as with windows.
        settled: whether more than a matrix product says so.
    """

    features: int | None
    by: str
    samples: int | None = None
    folded: bool = False
    settled: bool = False


def find_shaping(output: Tensor) -> Shaping | None:
    """What shaped a tensor; None if it has no graph, or the graph does not tell.

    Example:
        >>> images = nn.Conv2d(3, 8, 1)(torch.randn(2, 3, 5, 5)).relu().flatten(2).mT
        >>> find_shaping(images)
        Shaping(features=2, by='a convolution', samples=0, folded=False, settled=True)
    """
    if output.grad_fn is None:
        return None
    shape = tuple(output.shape)
    axes = [((axis, size),) for axis, size in enumerate(shape)]
    found = _Walk(shape).visit(output.grad_fn, output.output_nr, axes, 0)
    return None if found is None or found.features == SUMMED else found


class _Walk:
    """One walk through a graph; `axes` are always those of what a node returned."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape = shape
        self.seen: dict[Any, Shaping | None] = {}

    def visit(self, node: Any, output: int, axes: list[Factors], depth: int) -> Shaping | None:
        key = node, output, tuple(axes)
        if key not in self.seen:
            if len(self.seen) == _STEPS or depth == _DEPTH:
                return None
            self.seen[key] = None
            self.seen[key] = self.look(node, output, axes, depth)
        return self.seen[key]

    def look(self, node: Any, output: int, axes: list[Factors], depth: int) -> Shaping | None:
        name = _operation(node)
        if name in _NORMS:
            return self.norm(node, name, axes, depth)
        if name in _PRODUCTS:
            return self.product(node, name, axes, depth)
        scaled = self.parameter(node, axes) if name in _POINTWISE else None
        if scaled is not None and name not in ("Add", "Sub"):
            return replace(scaled, settled=True)
        # What is added may be the bias of a matrix product, which counts for more.
        return self.best(node, list(_moves(node, name, output, axes)), depth) or scaled

    def best(self, node: Any, moves: list[tuple[int, list[Factors]]], depth: int) -> Shaping | None:
        """What the inputs of a node say; the first that is settled counts.

        Inputs computed last come first: in `x + f(x)` that is `f(x)`, the nearer one.
        """
        edges = [(*node.next_functions[index], axes) for index, axes in moves]
        edges = [edge for edge in edges if edge[0] is not None and not _is_leaf(edge[0])]
        edges.sort(key=lambda edge: edge[0]._sequence_nr(), reverse=True)
        found = []
        for source, output, axes in edges:
            fitted = _fitted(axes, _shape_of(source, output))
            shaping = fitted and self.visit(source, output, fitted, depth + 1)
            if shaping and shaping.settled:
                return shaping
            found += [shaping] if shaping else []
        plain = [shaping for shaping in found if shaping.features is not None]
        if len({shaping.features for shaping in plain}) > 1:
            said = " and ".join(f"{s.by} with features on axis {s.features}" for s in plain[:2])
            return Shaping(None, said)
        return next(iter(plain or found), None)

    def norm(self, node: Any, name: str, axes: list[Factors], depth: int) -> Shaping | None:
        """Norms, embeddings and convolutions of maps: what they say is final."""
        axis, text = _NORMS[name]
        over = getattr(node, "_saved_normalized_shape", None)
        if over is None or len(over) == 1:
            found = self.says(axes, axis, text, samples_first=axis == 1)
            if found is not None:
                return replace(found, settled=True)
        if name.endswith(
            ("Norm", "NormBackward")
        ):  # also an instance norm, which folds samples and features
            return self.best(node, [(0, axes)], depth)
        return None

    def product(self, node: Any, name: str, axes: list[Factors], depth: int) -> Shaping | None:
        """Matrix products and convolutions, checked against what feeds them."""
        edges = [edge[0] for edge in node.next_functions]
        if name == "Convolution":
            axis, source = 1, 0
            inner = [axes[0], _SUM, *axes[2:]]
            found = self.says(axes, 1, "a convolution", samples_first=True)
            if len(axes) > 3:  # a map's convolution mixes neighbours, so it is not about tokens
                return None if found is None else replace(found, settled=True)
        else:
            first = len(edges) - 2  # a bias may come before the factors
            left, right = edges[first:]
            weighs_right = _is_parameter(right) or (name in ("Mm", "Addmm") and right is None)
            weighs_left = _is_parameter(left) and not weighs_right
            rows, columns = [*axes[:-1], _SUM], [*axes[:-2], _SUM, axes[-1]]
            if not weighs_left and not weighs_right:  # attention: both are latents
                return self.best(node, [(first, rows), (first + 1, columns)], depth)
            axis, source, inner = (
                (len(axes) - 1, first, rows)
                if weighs_right
                else (len(axes) - 2, first + 1, columns)
            )
            found = self.says(axes, axis, "a matrix product", samples_first=False)
        if found is None:
            return None
        before = self.best(node, [(source, inner)], depth)
        if before is None or before.features is None:
            return found
        if before.features == SUMMED:
            return replace(found, settled=before.settled)
        if found.features == SUMMED:
            return before
        return Shaping(
            None,
            f"{found.by} with features on axis {found.features}, fed by {before.by} with features "
            f"on axis {before.features}",
        )

    def parameter(self, node: Any, axes: list[Factors]) -> Shaping | None:
        """A parameter with one axis that is multiplied or added: one number per feature."""
        for source, output in node.next_functions:
            if _is_parameter(source):
                shape = _shape_of(source, output)
                long = [axis - len(shape) for axis, size in enumerate(shape) if size > 1]
                if len(long) == 1 and len(shape) <= len(axes):
                    axis = len(axes) + long[0]
                    if prod(size for _, size in axes[axis]) == shape[long[0]]:
                        return self.says(axes, axis, "a parameter with one axis", False)
        return None

    def says(self, axes: list[Factors], axis: int, by: str, samples_first: bool) -> Shaping | None:
        """An operation with features on one of its axes, in terms of the output's axes."""
        labels = {label for label, size in axes[axis] if size > 1}
        if len(labels) != 1:
            return None  # features are spread over several axes of the output, or there is one
        [features] = labels
        samples, folded = None, False
        if samples_first:
            holders = {label for label, size in axes[0] if size > 1}
            if len(holders) == 1 and SUMMED not in holders:
                [samples] = holders
                folded = prod(size for _, size in axes[0]) != self.shape[samples]
        return Shaping(features, by, samples, folded)


def _moves(
    node: Any, name: str, output: int, axes: list[Factors]
) -> Iterator[tuple[int, list[Factors]]]:
    """The inputs of an operation that keeps or moves axes, with their axes."""
    edges = node.next_functions
    here = tuple(prod(size for _, size in axis) for axis in axes)
    if name in _POINTWISE:
        for index, (source, number) in enumerate(edges):
            if source is not None and _shape_of(source, number) == here:
                yield index, axes
    elif name.startswith("ScaledDotProduct"):
        yield 2, [*axes[:-2], _SUM, axes[-1]]
        yield 0, [*axes[:-1], _SUM]
    elif name == "Cat":
        yield from ((index, axes) for index in range(len(edges)))
    elif name == "Stack":
        rest = list(axes)
        rest.pop(_signed(node._saved_dim) % len(axes))
        yield from ((index, rest) for index in range(len(edges)))
    elif name == "BackwardHookFunctionBackward":  # hooks on gradients, which return their inputs
        yield output, axes
    elif edges and edges[0][0] is not None:
        shape = _shape_of(*edges[0])
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


def _fitted(axes: list[Factors], shape: tuple[int, ...]) -> list[Factors] | None:
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


def _operation(node: Any) -> str:
    """The operation of a node: "Relu" for `ReluBackward0`. Only PyTorch's own end in a digit."""
    name: str = node.name()
    plain = name.rstrip("0123456789")
    return name if plain == name else plain.removesuffix("Backward")


def _shape_of(node: Any, output: int) -> tuple[int, ...]:
    """The shape of what a node returned in the forward pass."""
    if _is_leaf(node):
        return tuple(node.variable.shape)
    return tuple(node._input_metadata[output].shape)


def _is_leaf(node: Any) -> bool:
    name: str = node.name()
    return name.endswith("AccumulateGrad")


def _is_parameter(node: Any) -> bool:
    """Whether a node returned a parameter, cast or viewed at most."""
    for _ in range(8):
        if node is None or _is_leaf(node):
            break
        if _operation(node) not in {*_VIEWS, "Expand", "ToCopy", "Transpose", "T", "Permute"}:
            return False
        node = node.next_functions[0][0]
    return node is not None and isinstance(getattr(node, "variable", None), nn.Parameter)


def _signed(axis: int) -> int:
    """Autograd shows negative axes as unsigned numbers."""
    return axis - 2**64 if axis >= 2**63 else axis


_NORMS = {
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

_PRODUCTS = {"Mm", "Addmm", "Bmm", "Baddbmm", "Linear", "Convolution"}

_VIEWS = {"View", "UnsafeView", "ReshapeAlias", "Squeeze", "Unsqueeze"}

_RESIZING = {
    *("Slice", "Narrow", "Split", "SplitWithSizes", "UnsafeSplit", "UnsafeSplitWithSizes"),
    *("ConstantPadNd", "Glu", "IndexSelect"),
    *("MaxPool2DWithIndices", "AvgPool2D", "AdaptiveAvgPool2D", "AdaptiveMaxPool2D"),
    *("ReflectionPad1D", "ReflectionPad2D", "ReplicationPad1D", "ReplicationPad2D"),
    *("UpsampleNearest1D", "UpsampleNearest2D", "UpsampleNearest3D", "UpsampleBilinear2D"),
    *("UpsampleBicubic2D", "UpsampleLinear1D", "MaxPool3DWithIndices", "AvgPool3D"),
}
"""Operations that keep the axes in place and change the size of some."""

_POINTWISE = {
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
