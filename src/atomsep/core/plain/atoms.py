r"""From tokens to statistics and back in plain PyTorch, by the closed form.

With q the charges, g = max(-q, 0), m the masses, w = 1/N, u the unit vectors from the nucleus to
the tokens (signs, for norm 1) and gP, gG, gS, gQ, gr, gmu the gradients that arrive for the
statistics,

    s = w sum g_i u_i        v = gmu - gr s

    position:  w m_i v + gr w g_i u_i
    charge:    gS + 2 q_i gQ,  plus gP for q_i > 0,
               plus -gG + w p_i·v - gr w |p_i - mu| for q_i < 0

so the backward pass needs the latent and the nucleus and keeps nothing of size N x h. Both passes
walk over slabs of samples that stay in the cache, and every temporary has the size of one slab.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from atomsep.checks import Norm
from atomsep.core.plain.precision import full_precision
from atomsep.core.statistics import FIELDS, Known, Statistics, Tokens
from atomsep.functional import widen

SLAB = {"cpu": 1 << 20}
"""Elements per slab: on the CPU what its cache holds, elsewhere what keeps the chip busy."""


def slabs(tokens: Tensor) -> Iterator[slice]:
    """Ranges of samples that are small enough to work on at a time."""
    samples, per_sample = tokens.shape[0], tokens.shape[1] * tokens.shape[2]
    if torch.compiler.is_compiling():  # the compiler fuses the passes, and unrolls loops
        yield slice(0, samples)
        return
    step = max(1, SLAB.get(tokens.device.type, 1 << 26) // per_sample)
    for start in range(0, samples, step):
        yield slice(start, min(start + step, samples))


class _Slab(NamedTuple):
    """Tokens in working precision with padding zeroed, their scores, q, max(-q, 0) and m."""

    tokens: Tensor
    score: Tensor
    charge: Tensor
    lightness: Tensor
    mass: Tensor


def _read_slab(whole: Tokens, some: slice) -> _Slab:
    source, scores, mask, _, (layout, feature, _) = whole
    mask = None if mask is None else mask[some]
    tokens = widen(layout.tokens(source)[some])
    if not torch.compiler.is_compiling() and tokens.stride(0) < tokens.stride(1):
        tokens = tokens.contiguous()  # sums over interleaved samples may round each differently
    if mask is not None:  # padding may hold anything, NaN too
        tokens = tokens.masked_fill(~mask.unsqueeze(-1), 0)
    raw = tokens[..., feature] if scores is None else widen(scores[some])
    if mask is not None and scores is not None:
        raw = raw.masked_fill(~mask, 0)
    charge = torch.tanh(raw / 2)
    lightness = torch.relu(-charge)
    mass = 1 - lightness if mask is None else mask.to(lightness.dtype) - lightness
    return _Slab(tokens, raw, charge, lightness, mass)


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


def _weighted_sum(weights: Tensor, vectors: Tensor, exact: bool) -> Tensor:
    """Sum of w_i x_i over tokens: `(M, N)`, `(M, N, h)` to `(M, h)`.

    A matrix product is faster on a CPU, but may round equal samples differently. That must not
    happen to nuclei: 1/d of two that should coincide would turn it into large gradients. On a GPU
    it may round to TF32.
    """
    if exact or vectors.device.type == "cuda":
        return (weights.unsqueeze(-1) * vectors).sum(1)
    return torch.bmm(weights.unsqueeze(1), vectors).squeeze(1)


def _dot(vectors: Tensor, v: Tensor) -> Tensor:
    """x_i·v of every token: `(M, N, h)`, `(M, h)` to `(M, N)`."""
    if vectors.device.type == "cuda":
        return (vectors * v.unsqueeze(1)).sum(-1)
    return torch.bmm(v.unsqueeze(1), vectors.transpose(1, 2)).squeeze(1)


@full_precision
def read_atoms(
    tokens: Tokens, copy: bool = False
) -> tuple[Tensor | None, Tensor, Tensor, Tensor | None]:
    """See `atomsep.core.backend.Backend`; s is left to the backward pass."""
    source, _, _, count, (layout, feature, norm) = tokens
    charges, tables = [], []
    for some in slabs(layout.tokens(source)):
        slab = _read_slab(tokens, some)
        share = 1 / count[some]
        nucleus = _weighted_sum(slab.mass, slab.tokens, exact=True) * share.unsqueeze(1)
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
    return source.clone() if copy else None, torch.cat(charges), torch.cat(tables), None


@full_precision
def atoms_gradient(
    tokens: Tokens,
    known: Known,
    grad_passed: Tensor | None,
    grad_table: Tensor,
    scale: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    """See `atomsep.core.backend.Backend`; s is recomputed."""
    if scale is not None:
        grad_table = grad_table * scale
    if known.line is not None:
        tokens = tokens._replace(source=apply_line(tokens.source, known.line))
    source, scores, mask, count, (layout, feature, norm) = tokens
    if torch.compiler.is_compiling():  # the compiler chooses strides
        grad_source = torch.empty_like(source, memory_format=torch.contiguous_format)
    else:
        grad_source = layout.empty_like(source)
    grad_scores = None if scores is None else torch.empty_like(scores)
    written = layout.tokens(grad_source)
    arriving = None if grad_passed is None else layout.tokens(grad_passed)
    if layout.skip:
        if grad_passed is None:
            layout.front(grad_source).zero_()
        else:
            layout.front(grad_source).copy_(layout.front(grad_passed))
    for some in slabs(written):
        slab = _read_slab(tokens, some)
        g_protons, g_electrons, g_sum, g_square, g_radius = grad_table[some, :FIELDS].split(1, 1)
        share = (1 / count[some]).unsqueeze(1)
        nucleus = _with(known.table[some, FIELDS:], feature)
        offset, spread = _offsets(slab.tokens, nucleus, feature, norm)
        pull = torch.where(spread == 0, 0, slab.lightness / spread) if norm == 2 else slab.lightness
        direction = offset if norm == 2 else offset.sign_()
        mean_direction = _weighted_sum(pull, direction, exact=False) * share
        v = _with(grad_table[some, FIELDS:], feature) - g_radius * mean_direction

        # dq/dscore = (1 - q²) / 2, without the cancellation where q is near 1
        slope = 2 * torch.sigmoid(slab.score) * torch.sigmoid(-slab.score)
        along = _dot(slab.tokens, v)
        if feature is not None:  # v is 0 in the score's column, but 0 times an infinite score NaN
            along = along.masked_fill(slope == 0, 0)
        q = slab.charge
        of_electron = share * along - g_electrons - g_radius * share * spread
        grad_charge = g_sum + 2 * q * g_square
        grad_charge = torch.where(q > 0, grad_charge + g_protons, grad_charge)
        grad_charge = torch.where(q < 0, grad_charge + of_electron, grad_charge)
        grad_score = grad_charge * slope
        if mask is not None:
            grad_score = grad_score.masked_fill(~mask[some], 0)

        # Reuses the memory of the offsets, which has the layout of the latent.
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


def apply_line(source: Tensor, line: tuple[Tensor, Tensor]) -> Tensor:
    """A latent from the input of its batch norm; see `atomsep.core.origin`."""
    stretch, shift = (vector.view(-1, *[1] * (source.dim() - 2)) for vector in line)
    return (source * stretch + shift).to(source.dtype)


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
