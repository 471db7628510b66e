"""Name the nearest layer with tokens before an output that has none."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

MOST_NODES = 10_000


def nearest_with_tokens(model: nn.Module, output: Tensor, layer: nn.Module) -> str | None:
    """The layer that computed the nearest tensor with tokens, from the output's graph.

    None where there is no graph, or no parameter of the model shows which layer it was.

    Args:
        model: the model around the layers.
        output: what the layer returned.
        layer: the layer whose output has no tokens, which is not the answer.
    """
    if torch.compiler.is_compiling() or output.grad_fn is None:
        return None
    owners = {
        id(parameter): (name, module)
        for name, module in model.named_modules()
        for parameter in module.parameters(recurse=False)
    }
    for with_tokens in filter(_has_tokens, _before(output.grad_fn)):
        leaves = (owners.get(id(getattr(node, "variable", None))) for node in _before(with_tokens))
        name, owner = next(filter(None, leaves), (None, None))
        if owner is not layer:
            return name
    return None


def _before(node: Any) -> Iterator[Any]:
    """A node of the graph and those before it, nearest first."""
    waiting, seen = deque([node]), {node}
    while waiting and len(seen) < MOST_NODES:
        node = waiting.popleft()
        yield node
        fresh = [each for each, _ in node.next_functions if each is not None and each not in seen]
        seen.update(fresh)
        waiting.extend(fresh)


def _has_tokens(node: Any) -> bool:
    """Whether the operation of a node gave several tokens per sample."""
    shapes = [tuple(each.shape) for each in getattr(node, "_input_metadata", ())[:1]]
    return any(3 <= len(shape) <= 5 and math.prod(shape[2:]) > 1 for shape in shapes)
