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
from atomsep.core.statistics import FIELDS, Reading, Terms

_LIBRARY = Library("atomsep", "DEF")
_TAG = getattr(torch.Tag, "needs_exact_strides", torch.Tag.needs_fixed_stride_order)
"""The operators read tensors in place: the compiler must not choose other strides for them."""


def _operator(schema: str, real: Callable[..., Any], fake: Callable[..., Any]) -> Any:
    name = schema.partition("(")[0]
    _LIBRARY.define(schema, tags=(_TAG,))
    _LIBRARY.impl(name, real, "CompositeExplicitAutograd")
    register_fake(f"atomsep::{name}", fake, lib=_LIBRARY)
    return getattr(torch.ops.atomsep, name)


def _reading(axes: Any, skip: int, feature: int | None, norm: Any) -> Reading:
    return Reading(Layout(axes, skip), feature, norm)


def _flat(reading: Reading) -> tuple[str, int, int | None, int]:
    layout, feature, norm = reading
    return layout.axes, layout.skip, feature, norm


def _or_empty(tensor: Tensor | None, like: Tensor) -> Tensor:
    return like.new_empty(0) if tensor is None else tensor


def _read(source: Tensor, scores: Any, mask: Any, count: Any, copy: bool, *reading: Any) -> Any:
    copied, *rest = guarded.read_atoms(source, scores, mask, count, _reading(*reading), copy)
    charge, table, mean_direction = rest
    return _or_empty(copied, source), charge, table, _or_empty(mean_direction, table)


def _read_fake(source: Tensor, scores: Any, mask: Any, count: Any, copy: bool, *key: Any) -> Any:
    layout, feature, _ = _reading(*key)
    samples, length, features = layout.sizes(source)
    width = features if feature is None else features - 1
    return (
        empty_like(source, layout) if copy else source.new_empty(0),
        source.new_empty(samples, length),
        source.new_empty(samples, FIELDS + width, dtype=torch.float32),
        source.new_empty(samples, width, dtype=torch.float32),
    )


_read_op = _operator(
    "read_atoms(Tensor source, Tensor? scores, Tensor? mask, Tensor count, bool copy, str axes, "
    "int skip, int? feature, int norm) -> (Tensor, Tensor, Tensor, Tensor)",
    _read,
    _read_fake,
)


def read_atoms(
    source: Tensor,
    scores: Tensor | None,
    mask: Tensor | None,
    count: Tensor,
    reading: Reading,
    copy: bool = False,
) -> tuple[Tensor | None, Tensor, Tensor, Tensor | None]:
    """See `atomsep.core.backend.Backend`."""
    copied, *rest = _read_op(source, scores, mask, count, copy, *_flat(reading))
    charge, table, mean_direction = rest
    return copied if copy else None, charge, table, mean_direction


def _gradient(*arguments: Any) -> tuple[Tensor, Tensor]:
    (*known, grad_passed, grad_table, scale), reading = arguments[:-4], _reading(*arguments[-4:])
    first, second = guarded.atoms_gradient(*known, reading, grad_passed, grad_table, scale)
    return first, _or_empty(second, first)


def _gradient_fake(source: Tensor, scores: Tensor | None, *rest: Any) -> tuple[Tensor, Tensor]:
    second = None if scores is None else torch.empty_like(scores.contiguous())
    return empty_like(source, Layout(*rest[-4:-2])), _or_empty(second, source)


_gradient_op = _operator(
    "atoms_gradient(Tensor source, Tensor? scores, Tensor? mask, Tensor count, Tensor table, "
    "Tensor? mean_direction, Tensor? grad_passed, Tensor grad_table, Tensor? scale, str axes, "
    "int skip, int? feature, int norm) -> (Tensor, Tensor)",
    _gradient,
    _gradient_fake,
)


def atoms_gradient(
    source: Tensor,
    scores: Tensor | None,
    mask: Tensor | None,
    count: Tensor,
    table: Tensor,
    mean_direction: Tensor | None,
    reading: Reading,
    grad_passed: Tensor | None,
    grad_table: Tensor,
    scale: Tensor | None = None,
    line: tuple[Tensor, Tensor] | None = None,
) -> tuple[Tensor, Tensor | None]:
    """See `atomsep.core.backend.Backend`."""
    if line is not None:  # where a compiler traces the backward pass alone
        source = apply_line(source, line)
    first, second = _gradient_op(
        *(source, scores, mask, count, table, mean_direction, grad_passed, grad_table, scale),
        *_flat(reading),
    )
    return first, None if scores is None else second


def _loss(table: Tensor, count: Tensor, weight: float, gradient: bool, *terms: Any) -> Any:
    loss, slopes = guarded.pair_loss(table, count, Terms(*terms), weight, gradient)
    return loss, _or_empty(slopes, loss)


def _loss_fake(table: Tensor, count: Tensor, weight: float, gradient: bool, *terms: Any) -> Any:
    slopes = torch.empty_like(table, memory_format=torch.contiguous_format) if gradient else None
    return table.new_empty(()), _or_empty(slopes, table)


_loss_op = _operator(
    "pair_loss(Tensor table, Tensor count, float weight, bool gradient, int norm, float softening, "
    "str scale, float neutrality, float occupancy) -> (Tensor, Tensor)",
    _loss,
    _loss_fake,
)


def pair_loss(
    table: Tensor, count: Tensor, terms: Terms, weight: float, gradient: bool
) -> tuple[Tensor, Tensor | None]:
    """See `atomsep.core.backend.Backend`."""
    loss, slopes = _loss_op(table, count, weight, gradient, *terms)
    return loss, slopes if gradient else None
