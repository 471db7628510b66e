r"""From tokens to per-sample statistics, in one node of the autograd graph.

The closed form. With q the charges, g = max(-q, 0), m the masses, w = 1/N, u the unit vectors
from the nucleus to the tokens (signs, for norm 1) and gP, gG, gS, gQ, gr, gmu the gradients that
arrive for the statistics,

    s = w sum g_i u_i        v = gmu - gr s

    position:  w m_i v + gr w g_i u_i
    charge:    gS + 2 q_i gQ,  plus gP for q_i > 0,
               plus -gG + w p_i·v - gr w |p_i - mu| for q_i < 0

so the backward pass needs the latent and the nucleus and keeps nothing of size N x h. Both passes
walk over slabs of samples that stay in the cache, and every temporary is one slab.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from atomsep import kernels
from atomsep.functional import Norm, check_norm, form_atoms, widen
from atomsep.kernels.switch import for_tokens
from atomsep.layout import Layout

FIELDS = 5
"""Columns of a table of statistics before the nucleus: P, G, sum q, sum q² and the radius."""


@dataclass(frozen=True, eq=False)
class Statistics:
    """What one sample's tokens come down to; the loss needs nothing else.

    One table, so that one tensor and one gradient travel through the graph.

    Attributes:
        table: `(M, 5 + h')`: P, G, sum q, sum q², the radius, then the nucleus.
        count: number of real tokens, `(M,)`.
    """

    table: Tensor
    count: Tensor

    @staticmethod
    def pack(
        protons: Tensor,
        electrons: Tensor,
        charge_sum: Tensor,
        charge_square: Tensor,
        radius: Tensor,
        nucleus: Tensor,
    ) -> Tensor:
        """The table of its columns."""
        fields = torch.stack([protons, electrons, charge_sum, charge_square, radius], dim=1)
        return torch.cat([fields, nucleus], dim=1)

    @property
    def protons(self) -> Tensor:
        """P = sum max(q, 0), `(M,)`."""
        return self.table[:, 0]

    @property
    def electrons(self) -> Tensor:
        """G = sum max(-q, 0), `(M,)`."""
        return self.table[:, 1]

    @property
    def charge_sum(self) -> Tensor:
        """Net charge, sum q, `(M,)`."""
        return self.table[:, 2]

    @property
    def charge_square(self) -> Tensor:
        """Sum of q², `(M,)`."""
        return self.table[:, 3]

    @property
    def radius(self) -> Tensor:
        """Spread of the electrons, `(M,)`."""
        return self.table[:, 4]

    @property
    def nucleus(self) -> Tensor:
        """Weighted mean position, `(M, h')`."""
        return self.table[:, FIELDS:]

    def detach(self) -> Statistics:
        """The same numbers, cut from the graph."""
        return Statistics(self.table.detach(), self.count)


class Reading(NamedTuple):
    """How a tensor is read as charges and positions.

    Attributes:
        layout: where its tokens lie.
        feature: the feature that is the score, left out of the position; None if the scores
            come as a tensor of their own.
        norm: 1 or 2.
    """

    layout: Layout
    feature: int | None
    norm: Norm


class Measured(NamedTuple):
    """What `measure` gives.

    Attributes:
        passed: the source, to be handed on in its place; None unless asked for.
        charge: token importance `(M, N)`, detached, in the source's type.
        statistics: the per-sample statistics, in float32 at least.
    """

    passed: Tensor | None
    charge: Tensor
    statistics: Statistics


def measure(
    source: Tensor,
    scores: Tensor | None,
    mask: Tensor | None,
    count: Tensor,
    reading: Reading,
    *,
    passing: str | None = None,
) -> Measured:
    """Charges and statistics of a tensor of tokens, with the closed-form gradient.

    Args:
        source: the tokens in any layout. With `reading.feature` it holds the scores too.
        scores: `(M, N)` where `reading.feature` is None.
        mask: True on real tokens, `(M, N)`.
        count: number of real tokens, `(M,)`.
        reading: layout, feature and norm.
        passing: None, or what to hand on: "alias" for the source's own memory, "clone" for a
            copy, which a consumer may overwrite.

    Returns:
        What is handed on, the charges and the statistics.
    """
    check_norm(reading.norm)
    charge, table, *handed = _Measure.apply(source, scores, mask, count, reading, passing)
    return Measured(handed[0] if handed else None, charge, Statistics(table, count))


class _Measure(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        source: Tensor,
        scores: Tensor | None,
        mask: Tensor | None,
        count: Tensor,
        reading: Reading,
        passing: str | None,
    ) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        copied = ctx.mean_direction = None
        if for_tokens(source, scores, mask, reading):
            copied, charge, table, ctx.mean_direction = kernels.measure_forward(
                source, scores, mask, count, reading, copy=passing == "clone"
            )
        else:
            with torch.autocast(source.device.type, enabled=False):
                charge, table = forward_slabs(source, scores, mask, count, reading)
        # The latent alone is saved: checkpointing runs this again and must find the same tensors,
        # while mask and statistics stay those of the forward that the loss was taken of.
        ctx.save_for_backward(source, scores)
        ctx.mask, ctx.count, ctx.reading, ctx.table = mask, count, reading, table.detach()
        ctx.mark_non_differentiable(charge)
        if passing is None:  # no output of None, which torch.compile cannot trace
            return charge, table
        if passing == "alias":
            return charge, table, source.detach()
        return charge, table, source.clone() if copied is None else copied

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        _, grad_table, *handed = grads
        grad_passed = handed[0] if handed else None
        rest = (None, None, None, None)
        if grad_table is None:
            return grad_passed, None, *rest
        source, scores = ctx.saved_tensors
        if torch.is_grad_enabled() and not torch.compiler.is_compiling():
            first, second = _differentiable_backward(
                source, scores, ctx.mask, ctx.reading, grad_table
            )
            if first is not None and grad_passed is not None:
                first = first + grad_passed
            return first, second, *rest
        known = (source, scores, ctx.mask, ctx.count, ctx.table)
        if ctx.mean_direction is not None:
            first, second = kernels.measure_backward(
                *known, ctx.mean_direction, ctx.reading, grad_passed, grad_table
            )
            return first, second, *rest
        with torch.autocast(source.device.type, enabled=False):
            first, second = backward_slabs(*known, ctx.reading, grad_passed, grad_table)
        return first, second, *rest


SLAB = {"cpu": 1 << 20}
"""Elements of a slab: on the CPU what its cache holds, elsewhere what keeps the chip busy."""


def slabs(tokens: Tensor) -> Iterator[slice]:
    """Ranges of samples small enough to work on at a time."""
    samples, per_sample = tokens.shape[0], tokens.shape[1] * tokens.shape[2]
    if torch.compiler.is_compiling():  # the compiler fuses the passes, and unrolls loops
        yield slice(0, samples)
        return
    step = max(1, SLAB.get(tokens.device.type, 1 << 26) // per_sample)
    for start in range(0, samples, step):
        yield slice(start, min(start + step, samples))


class _Slab(NamedTuple):
    """Tokens in working precision with padding zeroed, their q, max(-q, 0) and m."""

    tokens: Tensor
    charge: Tensor
    lightness: Tensor
    mass: Tensor


def _read_slab(
    tokens: Tensor, scores: Tensor | None, mask: Tensor | None, feature: int | None
) -> _Slab:
    tokens = widen(tokens)
    if mask is not None:  # padding may hold anything, NaN too
        tokens = tokens.masked_fill(~mask.unsqueeze(-1), 0)
    raw = tokens[..., feature] if scores is None else widen(scores)
    if mask is not None and scores is not None:
        raw = raw.masked_fill(~mask, 0)
    charge = torch.tanh(raw / 2)
    lightness = torch.relu(-charge)
    mass = 1 - lightness if mask is None else mask.to(lightness.dtype) - lightness
    return _Slab(tokens, charge, lightness, mass)


def _offsets(
    tokens: Tensor, nucleus: Tensor, feature: int | None, norm: Norm
) -> tuple[Tensor, Tensor]:
    """P - mu `(M, N, h)`, zero in the score's column, and its norms `(M, N)`."""
    offset = tokens - nucleus.unsqueeze(1)
    if feature is not None:
        offset[..., feature] = 0
    if norm == 1:
        return offset, offset.abs().sum(-1)
    return offset, offset.square().sum(-1).sqrt_()


def _weighted_sum(weights: Tensor, vectors: Tensor) -> Tensor:
    """Sum of w_i x_i over tokens: `(M, N)`, `(M, N, h)` to `(M, h)`."""
    if vectors.device.type == "cuda":  # where a matrix product may be rounded to TF32
        return (weights.unsqueeze(-1) * vectors).sum(1)
    return torch.bmm(weights.unsqueeze(1), vectors).squeeze(1)


def _dot(vectors: Tensor, v: Tensor) -> Tensor:
    """x_i·v of every token: `(M, N, h)`, `(M, h)` to `(M, N)`."""
    if vectors.device.type == "cuda":
        return (vectors * v.unsqueeze(1)).sum(-1)
    return torch.bmm(v.unsqueeze(1), vectors.transpose(1, 2)).squeeze(1)


def forward_slabs(
    source: Tensor, scores: Tensor | None, mask: Tensor | None, count: Tensor, reading: Reading
) -> tuple[Tensor, Tensor]:
    """Charges `(M, N)` and the table of statistics `(M, 5 + h')`."""
    layout, feature, norm = reading
    tokens = layout.tokens(source)
    charges, tables = [], []
    for some in slabs(tokens):
        slab = _read_slab(
            tokens[some],
            None if scores is None else scores[some],
            None if mask is None else mask[some],
            feature,
        )
        share = 1 / count[some]
        nucleus = _weighted_sum(slab.mass, slab.tokens) * share.unsqueeze(1)
        _, spread = _offsets(slab.tokens, nucleus, feature, norm)
        charges.append(slab.charge.to(source.dtype))
        tables.append(
            Statistics.pack(
                torch.relu(slab.charge).sum(1),
                slab.lightness.sum(1),
                slab.charge.sum(1),
                slab.charge.square().sum(1),
                (slab.lightness * spread).sum(1) * share,
                _without(nucleus, feature),
            )
        )
    return torch.cat(charges), torch.cat(tables)


def backward_slabs(
    source: Tensor,
    scores: Tensor | None,
    mask: Tensor | None,
    count: Tensor,
    table: Tensor,
    reading: Reading,
    grad_passed: Tensor | None,
    grad_table: Tensor,
) -> tuple[Tensor, Tensor | None]:
    """Gradients of source and scores: `grad_passed + J^T grad_statistics`, written once."""
    layout, feature, norm = reading
    grad_source = layout.empty_like(source)
    grad_scores = None if scores is None else torch.empty_like(scores)
    tokens, written = layout.tokens(source), layout.tokens(grad_source)
    arriving = None if grad_passed is None else layout.tokens(grad_passed)
    if layout.skip:
        if grad_passed is None:
            layout.front(grad_source).zero_()
        else:
            layout.front(grad_source).copy_(layout.front(grad_passed))
    for some in slabs(tokens):
        slab = _read_slab(
            tokens[some],
            None if scores is None else scores[some],
            None if mask is None else mask[some],
            feature,
        )
        g_protons, g_electrons, g_sum, g_square, g_radius = grad_table[some, :FIELDS].split(1, 1)
        share = (1 / count[some]).unsqueeze(1)
        nucleus = _with(table[some, FIELDS:], feature)
        offset, spread = _offsets(slab.tokens, nucleus, feature, norm)
        pull = torch.where(spread == 0, 0, slab.lightness / spread) if norm == 2 else slab.lightness
        direction = offset if norm == 2 else offset.sign_()
        mean_direction = _weighted_sum(pull, direction) * share
        v = _with(grad_table[some, FIELDS:], feature) - g_radius * mean_direction

        along = _dot(slab.tokens, v)
        q = slab.charge
        of_electron = share * along - g_electrons - g_radius * share * spread
        grad_charge = g_sum + 2 * q * g_square
        grad_charge = torch.where(q > 0, grad_charge + g_protons, grad_charge)
        grad_charge = torch.where(q < 0, grad_charge + of_electron, grad_charge)
        grad_score = grad_charge * (1 - q * q) / 2
        if mask is not None:
            grad_score = grad_score.masked_fill(~mask[some], 0)

        # In the memory of the offsets, and so in the layout of the latent.
        step = direction.mul_((pull * (g_radius * share)).unsqueeze(-1))
        step.addcmul_((slab.mass * share).unsqueeze(-1), v.unsqueeze(1))
        if feature is not None:
            step[..., feature] = grad_score
        if arriving is not None:
            step += arriving[some]
        written[some] = step
        if grad_scores is not None:
            grad_scores[some] = grad_score
    return grad_source, grad_scores


def _differentiable_backward(
    source: Tensor,
    scores: Tensor | None,
    mask: Tensor | None,
    reading: Reading,
    grad_table: Tensor,
) -> tuple[Tensor | None, Tensor | None]:
    """The same gradient by autograd through the plain formulas, to be differentiated again."""
    tokens = reading.layout.tokens(source)
    if scores is None:
        atoms = form_atoms(tokens, mask, norm=reading.norm, charge=reading.feature or 0)
    else:
        atoms = form_atoms(
            tokens, mask, norm=reading.norm, charge=lambda _: scores, position=lambda p: p
        )
    table = Statistics.pack(
        *(atoms.protons, atoms.electrons, atoms.charge_sum, atoms.charge_square),
        *(atoms.radius, atoms.nucleus),
    )
    inputs = [t if t is not None and t.requires_grad else None for t in (source, scores)]
    wanted = [tensor for tensor in inputs if tensor is not None]
    grads = iter(
        torch.autograd.grad(table, wanted, grad_table, create_graph=True, materialize_grads=True)
    )
    first, second = (None if tensor is None else next(grads) for tensor in inputs)
    return first, second


def _without(nucleus: Tensor, feature: int | None) -> Tensor:
    """Drop the score's column."""
    if feature is None:
        return nucleus
    index = feature % nucleus.shape[1]
    return torch.cat([nucleus[:, :index], nucleus[:, index + 1 :]], dim=1)


def _with(nucleus: Tensor, feature: int | None) -> Tensor:
    """Put a zero back into the score's column."""
    if feature is None:
        return nucleus
    index = feature % (nucleus.shape[1] + 1)
    zero = nucleus.new_zeros(len(nucleus), 1)
    return torch.cat([nucleus[:, :index], zero, nucleus[:, index:]], dim=1)
