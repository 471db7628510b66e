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

from dataclasses import dataclass, replace
from math import prod
from typing import Any

from torch import Tensor

from atomsep.hooks.operations import (
    NORMS,
    POINTWISE,
    PRODUCTS,
    SUM,
    SUMMED,
    Factors,
    fitted,
    is_leaf,
    is_parameter,
    moves,
    operation,
    shape_of,
)

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
        >>> import torch
        >>> maps = torch.nn.Conv2d(3, 8, 1)(torch.randn(2, 3, 5, 5))
        >>> find_shaping(maps.relu().flatten(2).mT)
        Shaping(features=2, by='a convolution', samples=0, folded=False, settled=True)
    """
    if output.grad_fn is None:
        return None
    shape = tuple(output.shape)
    axes: list[Factors] = [((axis, size),) for axis, size in enumerate(shape)]
    found = _Walk(shape).visit(output.grad_fn, output.output_nr, axes, 0)
    return None if found is None or found.features == SUMMED else found


def has_compiled_part(output: Tensor) -> bool:
    """Whether compiled code made a tensor, or what it was made from, as far as a walk goes."""
    waiting, seen = [output.grad_fn], {output.grad_fn}
    while waiting and len(seen) < _STEPS:
        node = waiting.pop()
        if node is not None:
            if node.name().startswith("CompiledFunction"):
                return True
            fresh = {source for source, _ in node.next_functions} - seen
            seen |= fresh
            waiting.extend(fresh)
    return False


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
        name = operation(node)
        if name in NORMS:
            return self.norm(node, name, axes, depth)
        if name in PRODUCTS:
            return self.product(node, name, axes, depth)
        scaled = self.parameter(node, axes) if name in POINTWISE else None
        if scaled is not None and name not in ("Add", "Sub"):
            return replace(scaled, settled=True)
        # What is added may be the bias of a matrix product, which counts for more.
        return self.best(node, list(moves(node, name, output, axes)), depth) or scaled

    def best(
        self, node: Any, inputs: list[tuple[int, list[Factors]]], depth: int
    ) -> Shaping | None:
        """What the inputs of a node say; the first that is settled counts.

        Inputs computed last come first: in `x + f(x)` that is `f(x)`, the nearer one.
        """
        edges = [(*node.next_functions[index], axes) for index, axes in inputs]
        edges = [edge for edge in edges if edge[0] is not None and not is_leaf(edge[0])]
        edges.sort(key=lambda edge: edge[0]._sequence_nr(), reverse=True)
        found = []
        for source, output, axes in edges:
            inner = fitted(axes, shape_of(source, output))
            shaping = inner and self.visit(source, output, inner, depth + 1)
            if shaping and shaping.settled:
                return shaping
            found += [shaping] if shaping else []
        plain = [shaping for shaping in found if shaping.features is not None]
        if len({shaping.features for shaping in plain}) > 1:
            said = " and ".join(f"{s.by} with features on axis {s.features}" for s in plain[:2])
            return Shaping(None, said)
        return next(iter(plain or found), None)

    def norm(self, node: Any, name: str, axes: list[Factors], depth: int) -> Shaping | None:
        """Norms, embeddings and recurrent layers: what they say is final."""
        axis, text = NORMS[name]
        over = getattr(node, "_saved_normalized_shape", None)
        if over is None or len(over) == 1:
            found = self.says(axes, axis, text, samples_first=axis == 1)
            if found is not None:
                return replace(found, settled=True)
        if "Norm" in name:  # over several axes, or an instance norm, which joins two of them
            return self.best(node, [(0, axes)], depth)
        return None

    def product(self, node: Any, name: str, axes: list[Factors], depth: int) -> Shaping | None:
        """Matrix products and convolutions, checked against what feeds them."""
        edges = [edge[0] for edge in node.next_functions]
        if name == "Convolution":
            axis, source = 1, 0
            inner = [axes[0], SUM, *axes[2:]]
            found = self.says(axes, 1, "a convolution", samples_first=True)
            if len(axes) > 3:  # a map's convolution mixes neighbours, so it is not about tokens
                return None if found is None else replace(found, settled=True)
        elif name == "Linear":
            axis, source, inner = len(axes) - 1, 0, [*axes[:-1], SUM]
            found = self.says(axes, axis, "a matrix product", samples_first=False)
        else:
            first = len(edges) - 2  # a bias may come before the factors
            left, right = edges[first:]
            weighs_right = is_parameter(right) or (name in ("Mm", "Addmm") and right is None)
            weighs_left = is_parameter(left) and not weighs_right
            rows, columns = [*axes[:-1], SUM], [*axes[:-2], SUM, axes[-1]]
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
            if is_parameter(source):
                shape = shape_of(source, output)
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
