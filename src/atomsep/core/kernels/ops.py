"""The kernels as operators of PyTorch: the backend while torch.compile traces.

An operator is a black box that the compiler traces around; its fake implementation says what comes
out. Calling one costs host time, so eager code calls the launchers directly. An operator returns
neither an alias of an input nor None, hence the empty tensors.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.library import Library, register_fake

from atomsep.core.backend import guarded
from atomsep.core.kernels.strides import empty_like
from atomsep.core.layout import Layout
from atomsep.core.plain.atoms import apply_line
from atomsep.core.statistics import FIELDS, Known, Reading, Terms, Tokens

_LIBRARY = Library("atomsep", "DEF")
_TAG = getattr(torch.Tag, "needs_exact_strides", torch.Tag.needs_fixed_stride_order)
"""The operators read tensors in place: the compiler must not choose other strides for them."""


def _operator(schema: str, real: Callable[..., Any], fake: Callable[..., Any]) -> Any:
    name = schema.partition("(")[0]
    _LIBRARY.define(schema, tags=(_TAG,))
    _LIBRARY.impl(name, real, "CompositeExplicitAutograd")
    register_fake(f"atomsep::{name}", fake, lib=_LIBRARY)
    return getattr(torch.ops.atomsep, name)


def _pack(source: Tensor, scores: Any, mask: Any, count: Any, *reading: Any) -> Tokens:
    axes, skip, feature, norm = reading
    return Tokens(source, scores, mask, count, Reading(Layout(axes, skip), feature, norm))


def _flat(tokens: Tokens) -> tuple[Any, ...]:
    *tensors, (layout, feature, norm) = tokens
    return *tensors, layout.axes, layout.skip, feature, norm


def _or_empty(tensor: Tensor | None, like: Tensor) -> Tensor:
    return like.new_empty(0) if tensor is None else tensor


_TOKENS = (
    "Tensor source, Tensor? scores, Tensor? mask, Tensor count, str axes, int skip, int? feature, "
    "int norm"
)


def _read(*arguments: Any) -> tuple[Tensor, ...]:
    tokens, copy = _pack(*arguments[:-1]), arguments[-1]
    copied, charge, table, mean_direction = guarded.read_atoms(tokens, copy)
    copied = _or_empty(copied, tokens.source)
    return copied, charge, table, _or_empty(mean_direction, table)


def _read_fake(*arguments: Any) -> tuple[Tensor, ...]:
    source, _, _, _, (layout, feature, _) = _pack(*arguments[:-1])
    samples, length, features = layout.sizes(source)
    width = features if feature is None else features - 1
    return (
        empty_like(source, layout) if arguments[-1] else source.new_empty(0),
        source.new_empty(samples, length),
        source.new_empty(samples, FIELDS + width, dtype=torch.float32),
        source.new_empty(samples, width, dtype=torch.float32),
    )


_read_op = _operator(
    f"read_atoms({_TOKENS}, bool copy) -> (Tensor, Tensor, Tensor, Tensor)", _read, _read_fake
)


def read_atoms(
    tokens: Tokens, copy: bool = False
) -> tuple[Tensor | None, Tensor, Tensor, Tensor | None]:
    """See `atomsep.core.backend.Backend`."""
    copied, charge, table, mean_direction = _read_op(*_flat(tokens), copy)
    return copied if copy else None, charge, table, mean_direction


def _gradient(*arguments: Any) -> tuple[Tensor, Tensor]:
    *tokens, table, mean_direction, grad_passed, grad_table, scale = arguments
    first, second = guarded.atoms_gradient(
        _pack(*tokens), Known(table, mean_direction), grad_passed, grad_table, scale
    )
    return first, _or_empty(second, first)


def _gradient_fake(*arguments: Any) -> tuple[Tensor, Tensor]:
    source, scores, _, _, reading = _pack(*arguments[:-5])
    second = None if scores is None else torch.empty_like(scores.contiguous())
    return empty_like(source, reading.layout), _or_empty(second, source)


_gradient_op = _operator(
    f"atoms_gradient({_TOKENS}, Tensor table, Tensor? mean_direction, Tensor? grad_passed, "
    "Tensor grad_table, Tensor? scale) -> (Tensor, Tensor)",
    _gradient,
    _gradient_fake,
)


def atoms_gradient(
    tokens: Tokens,
    known: Known,
    grad_passed: Tensor | None,
    grad_table: Tensor,
    scale: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    """See `atomsep.core.backend.Backend`."""
    if known.line is not None:  # where a compiler traces the backward pass alone
        tokens = tokens._replace(source=apply_line(tokens.source, known.line))
    first, second = _gradient_op(*_flat(tokens), *known[:2], grad_passed, grad_table, scale)
    return first, None if tokens.scores is None else second


def _loss(table: Tensor, count: Tensor, weight: float, gradient: bool, *terms: Any) -> Any:
    loss, slopes = guarded.pair_loss(table, count, Terms(*terms), weight, gradient)
    return loss, _or_empty(slopes, loss)


def _loss_fake(table: Tensor, count: Tensor, weight: float, gradient: bool, *terms: Any) -> Any:
    slopes = torch.empty_like(table, memory_format=torch.contiguous_format) if gradient else None
    return table.new_empty(()), _or_empty(slopes, table)


_loss_op = _operator(
    "pair_loss(Tensor table, Tensor count, float weight, bool gradient, int norm, float softening, "
    "str scale, float neutrality, float occupancy, float energy) -> (Tensor, Tensor)",
    _loss,
    _loss_fake,
)


def pair_loss(
    table: Tensor, count: Tensor, terms: Terms, weight: float, gradient: bool
) -> tuple[Tensor, Tensor | None]:
    """See `atomsep.core.backend.Backend`."""
    loss, slopes = _loss_op(table, count, weight, gradient, *terms)
    return loss, slopes if gradient else None
