"""The kernels as operators of PyTorch, for torch.compile.

An operator is a black box that the compiler traces around: its fake implementation says what
comes out. Calling one costs some host time, so eager code calls the launchers themselves. An
operator returns no alias of an input and no None, hence the packed fields and the empty copy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor
from torch.library import custom_op

from atomsep.core.layout import Axes, Layout

if TYPE_CHECKING:
    from atomsep.checks import Norm, Scale
    from atomsep.core.plain.pairs import Terms
    from atomsep.core.statistics import Reading


def _reading(axes: str, skip: int, feature: int | None, norm: int) -> Reading:
    from atomsep.core.statistics import Reading

    return Reading(Layout(cast("Axes", axes), skip), feature, cast("Norm", norm))


def _terms(norm: int, softening: float, scale: str, neutrality: float, occupancy: float) -> Terms:
    from atomsep.core.plain.pairs import Terms

    return Terms(cast("Norm", norm), softening, cast("Scale", scale), neutrality, occupancy)


@custom_op(
    "atomsep::measure_forward",
    mutates_args=(),
    schema="(Tensor source, Tensor? scores, Tensor? mask, Tensor count, str axes, int skip, "
    "int? feature, int norm, bool copy) -> (Tensor, Tensor, Tensor, Tensor)",
)
def measure_forward(
    source: Tensor,
    scores: Tensor | None,
    mask: Tensor | None,
    count: Tensor,
    axes: str,
    skip: int,
    feature: int | None,
    norm: int,
    copy: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """`atomsep.core.kernels.forward.measure_forward`; an empty tensor where no copy is asked for."""
    from atomsep.core.kernels import forward

    reading = _reading(axes, skip, feature, norm)
    copied, *rest = forward.measure_forward(source, scores, mask, count, reading, copy)
    charge, table, mean_direction = rest
    return source.new_empty(0) if copied is None else copied, charge, table, mean_direction


@measure_forward.register_fake
def _(
    source: Tensor,
    scores: Tensor | None,
    mask: Tensor | None,
    count: Tensor,
    axes: str,
    skip: int,
    feature: int | None,
    norm: int,
    copy: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    layout = Layout(cast("Axes", axes), skip)
    samples, length, features = layout.tokens(source).shape
    width = features if feature is None else features - 1
    floats = torch.float32
    return (
        layout.empty_like(source) if copy else source.new_empty(0),
        source.new_empty(samples, length),
        source.new_empty(samples, 5 + width, dtype=floats),
        source.new_empty(samples, width, dtype=floats),
    )


@custom_op(
    "atomsep::measure_backward",
    mutates_args=(),
    schema="(Tensor source, Tensor? scores, Tensor? mask, Tensor count, Tensor table, "
    "Tensor mean_direction, str axes, int skip, int? feature, int norm, Tensor? grad_passed, "
    "Tensor grad_table) -> (Tensor, Tensor)",
)
def measure_backward(
    source: Tensor,
    scores: Tensor | None,
    mask: Tensor | None,
    count: Tensor,
    table: Tensor,
    mean_direction: Tensor,
    axes: str,
    skip: int,
    feature: int | None,
    norm: int,
    grad_passed: Tensor | None,
    grad_table: Tensor,
) -> tuple[Tensor, Tensor]:
    """`atomsep.core.kernels.backward.measure_backward`; an empty tensor where there are no scores."""
    from atomsep.core.kernels import backward

    first, second = backward.measure_backward(
        *(source, scores, mask, count, table, mean_direction),
        *(_reading(axes, skip, feature, norm), grad_passed, grad_table),
    )
    return first, source.new_empty(0) if second is None else second


@measure_backward.register_fake
def _(
    source: Tensor,
    scores: Tensor | None,
    mask: Tensor | None,
    count: Tensor,
    table: Tensor,
    mean_direction: Tensor,
    axes: str,
    skip: int,
    feature: int | None,
    norm: int,
    grad_passed: Tensor | None,
    grad_table: Tensor,
) -> tuple[Tensor, Tensor]:
    first = Layout(cast("Axes", axes), skip).empty_like(source)
    return first, source.new_empty(0) if scores is None else torch.empty_like(scores.contiguous())


@custom_op(
    "atomsep::pairs_forward",
    mutates_args=(),
    schema="(Tensor table, Tensor count, int norm, float softening, str scale, float neutrality, "
    "float occupancy, bool gradient) -> (Tensor, Tensor)",
)
def pairs_forward(
    table: Tensor,
    count: Tensor,
    norm: int,
    softening: float,
    scale: str,
    neutrality: float,
    occupancy: float,
    gradient: bool,
) -> tuple[Tensor, Tensor]:
    """`atomsep.core.kernels.pairs.pairs_forward`; an empty tensor where no gradient is asked for."""
    from atomsep.core.kernels import pairs

    terms = _terms(norm, softening, scale, neutrality, occupancy)
    loss, slopes = pairs.pairs_forward(table, count, terms, gradient)
    return loss, loss.new_empty(0) if slopes is None else slopes


@pairs_forward.register_fake
def _(
    table: Tensor,
    count: Tensor,
    norm: int,
    softening: float,
    scale: str,
    neutrality: float,
    occupancy: float,
    gradient: bool,
) -> tuple[Tensor, Tensor]:
    slopes = torch.empty_like(table, memory_format=torch.contiguous_format)
    return table.new_empty(()), slopes if gradient else table.new_empty(0)
