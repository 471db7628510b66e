"""Which axis of a tensor attention runs over, read from its autograd graph.

If a batch has as many samples as tokens, its number does not tell one from the other. Attention
does: what it returns has one row per token. So we walk back from a layer's output, through
everything that keeps its axes, to the last attention.
"""

from __future__ import annotations

from math import prod
from typing import Any

from torch import Tensor

from atomsep.hooks.operations import (
    NORMS,
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


def find_length(output: Tensor) -> int | None:
    """The axis of a sequence that the last attention before it runs over; None if none is found.

    Example:
        >>> import torch
        >>> layer = torch.nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)
        >>> find_length(layer(torch.randn(5, 5, 4)))
        1
    """
    waiting: list[tuple[Any, int, list[Factors]]] = [
        (output.grad_fn, output.output_nr, [((a, n),) for a, n in enumerate(output.shape)])
    ]
    seen: set[Any] = set()
    while waiting and len(seen) < _STEPS:
        waiting.sort(key=lambda entry: entry[0]._sequence_nr())
        node, number, axes = waiting.pop()  # the one computed last
        if node in seen:
            continue
        seen.add(node)
        name = operation(node)
        if _is_attention(node, name, axes):
            labels = {label for label, size in axes[-2] if size > 1} - {SUMMED}
            return labels.pop() if len(labels) == 1 else None
        for index, inner in _inputs(node, name, number, axes):
            source, output_nr = node.next_functions[index]
            known = source is not None and not is_leaf(source)
            shape = fitted(inner, shape_of(source, output_nr)) if known else None
            if shape is not None:
                waiting.append((source, output_nr, shape))
    return None


def _is_attention(node: Any, name: str, axes: list[Factors]) -> bool:
    if name.startswith("ScaledDotProduct"):
        return True
    several = prod(size for _, size in axes[0]) > 1  # a product per head and sample
    return name == "Bmm" and several and not any(is_parameter(e) for e, _ in node.next_functions)


def _inputs(
    node: Any, name: str, number: int, axes: list[Factors]
) -> list[tuple[int, list[Factors]]]:
    """The inputs of an operation that have the same tokens, with their axes."""
    if name in NORMS:
        return [(0, axes)] if NORMS[name][0] == -1 and "Norm" in name else []
    if name in ("Linear", "Mm"):
        return [(0, [*axes[:-1], SUM])]
    if name in ("Addmm", "Bmm", "Baddbmm"):
        return [(len(node.next_functions) - 2, [*axes[:-1], SUM])]
    return list(moves(node, name, number, axes))
