"""Statistics and loss in one node of the autograd graph, where the kernels run.

The same numbers as `atomsep.core.node` and `atomsep.core.plain.pairs`, whose nodes the host visits one after
the other in both passes. For a small latent that is what a step waits for, so here one node does
the work of two, and the gradient of the loss is scaled where the backward kernel reads it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from atomsep.core import kernels
from atomsep.core import node as measure
from atomsep.core.backend import for_tokens
from atomsep.core.node import Measured
from atomsep.core.plain import pairs
from atomsep.core.plain.pairs import Terms
from atomsep.core.statistics import Reading, Statistics
from atomsep.hooks.origin import Origin


def fits(source: Tensor, mask: Tensor | None, reading: Reading) -> bool:
    """Whether the kernels take this latent, outside of a compiled graph."""
    return not torch.compiler.is_compiling() and for_tokens(source, None, mask, reading)


def measure_with_loss(
    source: Tensor,
    mask: Tensor | None,
    count: Tensor,
    reading: Reading,
    terms: Terms,
    weight: float,
    *,
    passing: str | None = None,
    find_origin: Callable[[], Origin | None] | None = None,
) -> Measured:
    """Like `atomsep.core.node.measure`; the statistics hold the loss over all pairs as well.

    Where `find_origin` finds what the source was made of, the backward pass makes it again, unless
    there is no room for s, without which it needs the source itself. Handed on is then the source's
    own memory, and its consumer may write.
    """
    origin = None
    if find_origin is not None and reading.layout.axes == "channels_first":
        origin = find_origin()
    if origin is not None:
        if measure.has_room(source, reading.layout.sizes(source)[:2], 2):
            passing = "alias"
        else:
            origin = None
    charge, table, loss, *handed = _Atoms.apply(
        *(source, mask, count, reading, terms, weight, passing, origin)
    )
    ready = loss, (terms, weight)
    statistics = Statistics(table, count, measure.has_room(source, charge.shape, 3), ready)
    return Measured(handed[0] if handed else None, charge, statistics, keeps_source=origin is None)


class _Atoms(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        source: Tensor,
        mask: Tensor | None,
        count: Tensor,
        reading: Reading,
        terms: Terms,
        weight: float,
        passing: str | None,
        origin: Origin | None,
    ) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        copied, charge, table, mean_direction = kernels.measure_forward(
            source, None, mask, count, reading, copy=passing == "clone"
        )
        keep = ctx.needs_input_grad[0] and measure.has_room(source, charge.shape, 3)
        loss, slopes = kernels.pairs_forward(table, count, terms, keep, weight)
        if origin is None:
            ctx.save_for_backward(source, None)  # the same as `atomsep.core.node`, see there
            ctx.affine = ctx.line = None
        else:
            ctx.save_for_backward(origin.source, None)
            ctx.affine, ctx.line = origin.affine, origin.line()
        ctx.known = mask, count, table.detach()
        ctx.settings = reading, terms, weight
        kept = measure.has_room(source, charge.shape, 2)
        ctx.computed = mean_direction if kept else None, slopes
        ctx.mark_non_differentiable(charge)
        if passing is None:
            return charge, table, loss
        return charge, table, loss, source.detach() if copied is None else copied

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        _, grad_table, grad_loss, *handed = grads
        grad_passed = handed[0] if handed else None
        rest = (None,) * 7
        if grad_table is None and grad_loss is None:
            return grad_passed, *rest
        source, _ = ctx.saved_tensors
        mask, count, table = ctx.known
        reading, terms, weight = ctx.settings
        if torch.is_grad_enabled():
            if ctx.affine is not None:
                source = ctx.affine.normalize(source)
            grad = _differentiable_backward(ctx, source, grad_table, grad_loss)
            return grad if grad_passed is None else grad + grad_passed, *rest
        mean_direction, slopes = ctx.computed
        scale = None
        if grad_loss is not None:
            if slopes is None:
                slopes = kernels.pairs_gradient(table, count, terms, grad_loss, weight)
            elif grad_table is None:
                scale = grad_loss
            else:
                slopes = slopes * grad_loss
            grad_table = slopes if grad_table is None else grad_table + slopes
        assert grad_table is not None
        if mean_direction is None:
            mean_direction = kernels.measure_forward(
                source, None, mask, count, reading, copy=False
            )[-1]
        grad, _ = kernels.measure_backward(
            *(source, None, mask, count, table, mean_direction, reading),
            *(grad_passed, grad_table, scale, ctx.line),
        )
        return grad, *rest


def _differentiable_backward(
    ctx: Any, source: Tensor, grad_table: Tensor | None, grad_loss: Tensor | None
) -> Tensor:
    """The same gradient by autograd through the plain formulas, to be differentiated again."""
    mask, count, _ = ctx.known
    reading, terms, weight = ctx.settings
    statistics = Statistics(measure.plain_table(source, None, mask, reading), count)
    losses, grads = [], []
    if grad_table is not None:
        losses.append(statistics.table)
        grads.append(grad_table)
    if grad_loss is not None:
        losses.append(pairs.plain_loss(statistics, terms))
        grads.append(weight * grad_loss)
    [grad] = torch.autograd.grad(losses, [source], grads, create_graph=True)
    return grad
