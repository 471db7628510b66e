"""The gradient of the latent: `grad_passed + J^T grad_statistics`, in one launch and one pass.

With v = gmu - gr s, where the forward pass kept s, the gradient of every token depends on that
token alone:

    position:  w m v + gr w g u
    score:     (1 - q²)/2 · (gS + 2 q gQ,  plus gP for q > 0,
               plus -gG + w p·v - gr w |p - mu| for q < 0)

It reads the latent and the arriving gradient, and writes the gradient. Only the positions of
electrons are needed: where tokens are rows, the others are not read except for their scores, which
come one step ahead, so that it is known in time what to read. Where a batch norm produced the
latent, its input may be read instead (`atomsep.core.origin`): a factor and a shift per feature.
Device memory is the limit.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl
from torch import Tensor

from atomsep.core.kernels.blocks import Latent, backward_blocks, ceil_div
from atomsep.core.kernels.forward import read_atoms
from atomsep.core.kernels.launch import Launch, on
from atomsep.core.kernels.strides import empty_like, geometry, score_at, token_view
from atomsep.core.kernels.tile import (
    READ,
    charge_gradient,
    charge_of,
    directions,
    every_position,
    fold,
    places,
    read_gradients,
    read_positions,
    read_scores,
    read_vector,
    sizes,
    spread_and_pull,
    tile_mask,
    unpack,
)

if TYPE_CHECKING:
    from atomsep.core.layout import Layout
    from atomsep.core.statistics import Known, Reading, Tokens


def atoms_gradient(
    tokens: Tokens,
    known: Known,
    grad_passed: Tensor | None,
    grad_table: Tensor,
    scale: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    """See `atomsep.core.backend.Backend`."""
    source, scores, mask, count, reading = tokens
    table, mean_direction, line = known
    if mean_direction is None:
        *_, mean_direction = read_atoms(tokens)
    layout = reading.layout
    grad_source = empty_like(source, layout)
    scores = None if scores is None else scores.contiguous()
    mask = None if mask is None else mask.contiguous()
    grad_scores = None if scores is None else torch.empty_like(scores)
    first, _ = _tokens_of(source, source, layout)
    written, written_apart = _tokens_of(grad_source, source, layout)
    arriving = arriving_apart = None
    if grad_passed is not None:
        arriving, arriving_apart = _tokens_of(grad_passed, source, layout)
    if layout.skip:
        skipped = layout.front(grad_source)
        if grad_passed is None:
            skipped.zero_()
        else:
            skipped.copy_(layout.front(grad_passed))
    stretches, shifts = (None, None) if line is None else line
    launch = _launch(
        *(source.shape, source.stride(), source.dtype, source.device, reading),
        *(written_apart, arriving_apart),
        *(None if scores is None else scores.dtype, mask is None, arriving is None),
        *(scale is None, count.dtype, stretches is None),
    )
    with on(source.device):
        given = first, scores, mask, stretches, shifts, count, table, mean_direction
        launch((*given, arriving, grad_table.contiguous(), scale, written, grad_scores))
    return grad_source, grad_scores


def _tokens_of(
    other: Tensor, source: Tensor, layout: Layout
) -> tuple[Tensor, tuple[int, ...] | None]:
    """A tensor that begins at its first token, and the strides if they differ from the source."""
    alike = other.stride() == source.stride()
    if alike and not layout.skip:
        return other, None
    tokens = layout.tokens(other)
    return tokens, None if alike else tokens.stride()


@lru_cache(maxsize=1024)
def _launch(
    shape: tuple[int, ...],
    stride: tuple[int, ...],
    dtype: torch.dtype,
    device: torch.device,
    reading: Reading,
    written: tuple[int, ...] | None,
    arriving: tuple[int, ...] | None,
    *kinds: object,
) -> Launch:
    """The launch for latents of this kind; `kinds` are the types of the other tensors."""
    layout, feature, norm = reading
    view = token_view(shape, stride, layout)
    assert view is not None
    samples, length, features, *_ = view
    where = geometry(view)
    latent = Latent(samples, length, features, dtype.itemsize, where.rows, where.align)
    blocks = backward_blocks(latent)
    tiles = ceil_div(length, blocks.tokens * blocks.steps)
    same = (None, None, None)  # the strides of the tokens, about which the compiler knows more
    numbers = (
        *(where.tokens, where.features, where.sample, where.wide),
        *(*(written or same), *(arriving or same), tiles),
    )
    return Launch(
        *(backward_kernel, device, (samples * tiles,), numbers, blocks.warps),
        {"NORM": norm, "ROWS": where.rows, "ALIGN": where.align, "FEATURE": score_at(view, feature),
         "FULL": features % blocks.features == 0, "WHOLE": blocks.features >= features,
         "TOKENS": blocks.tokens, "FEATURES": blocks.features, "STEPS": blocks.steps,
         "KEPT": blocks.kept, "STAGES": blocks.stages},
    )  # fmt: skip


@triton.jit(do_not_specialize=[*READ, "tiles"])
def backward_kernel(
    source, scores, mask, stretches, shifts, count, table, mean_direction, arriving, grad_table,
    scale, written, grad_scores,
    tokens, features, sample_units, units,
    written_sample, written_token, written_feature,
    arriving_sample, arriving_token, arriving_feature, tiles,
    NORM: tl.constexpr, ROWS: tl.constexpr, ALIGN: tl.constexpr, FEATURE: tl.constexpr,
    FULL: tl.constexpr, WHOLE: tl.constexpr, TOKENS: tl.constexpr, FEATURES: tl.constexpr,
    STEPS: tl.constexpr, KEPT: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """One program: some tokens of one sample."""
    tokens, features, width, stride_sample, stride_token, stride_feature = unpack(
        tokens, features, sample_units, units, scores, ROWS, ALIGN
    )
    if written_sample is None:
        written_sample, written_token, written_feature = stride_sample, stride_token, stride_feature
    if arriving_sample is None:
        arriving_sample, arriving_token = stride_sample, stride_token
        arriving_feature = stride_feature
    tile = tl.num_programs(0) - 1 - tl.program_id(0)  # the end of what arrives was written last
    sample = (tile // tiles).to(tl.int64)
    tile = tile % tiles
    share = 1 / tl.load(count + sample)
    at = sample * (width + 5)
    factor = 1.0
    if scale is not None:
        factor = tl.load(scale)
    g_protons, g_electrons, g_sum, g_square, g_radius = read_gradients(grad_table, at, factor)
    nucleus = table + at + 5
    grad_nucleus = grad_table + at + 5
    mean_direction += sample * width
    source_at = source + sample * stride_sample
    written_at = written + sample * written_sample
    if arriving is not None:
        arriving += sample * arriving_sample
    if WHOLE:
        column = tl.arange(0, FEATURES)
        mu = read_vector(nucleus, column, features, FEATURE)
        v = pull_vector(grad_nucleus, mean_direction, factor, g_radius, column, features, FEATURE)
        of_nucleus = tl.sum(mu * v, axis=0)
        stretch, base = read_origin(stretches, shifts, mu, column, features, FEATURE)
    if stretches is not None and scores is None:
        score_stretch = tl.load(stretches + FEATURE)
        score_shift = tl.load(shifts + FEATURE)
    first = tile * STEPS * TOKENS + tl.arange(0, TOKENS)
    if ROWS:
        next_real, next_score = read_scores(
            source_at, scores, mask, sample, first, first < tokens, tokens, FEATURE,
            stride_token, stride_feature,
        )  # fmt: skip
    for step in tl.range(0, STEPS, num_stages=STAGES):
        token = first + step * TOKENS
        inside = token < tokens
        if (
            ROWS
        ):  # one step ahead: which tokens are electrons, and have to be read, is known in time
            real, score = next_real, next_score
            ahead = token + TOKENS
            next_real, next_score = read_scores(
                source_at, scores, mask, sample, ahead, ahead < tokens, tokens, FEATURE,
                stride_token, stride_feature,
            )  # fmt: skip
        else:
            real, score = read_scores(
                source_at, scores, mask, sample, token, inside, tokens, FEATURE,
                stride_token, stride_feature,
            )  # fmt: skip
        if stretches is not None and scores is None:
            score = tl.where(real, score * score_stretch + score_shift, 0.0)
        read, unclean = inside, mask
        if ROWS:
            read, unclean = real & (score < 0), None
        q, slope = charge_of(score)
        # Sums over features: |p - mu|, and p·v = (p - mu)·v + mu·v.
        if WHOLE:
            here = places(source_at, token, column, stride_token, stride_feature)
            offset = read_positions(
                here, read, real, column, stretch, base, unclean, features, FULL
            )
            length = tl.sum(sizes(offset, NORM), axis=1)
            along = tl.sum(offset * v[None, :], axis=1) + of_nucleus
        else:
            lengths = tl.zeros((TOKENS, KEPT), tl.float32)
            alongs = tl.zeros((TOKENS, KEPT), tl.float32)
            of_nuclei = tl.zeros((FEATURES,), tl.float32)
            for start in range(0, features, FEATURES):
                column = start + tl.arange(0, FEATURES)
                mu = read_vector(nucleus, column, features, FEATURE)
                v = pull_vector(
                    grad_nucleus, mean_direction, factor, g_radius, column, features, FEATURE
                )
                of_nuclei += mu * v
                stretch, base = read_origin(stretches, shifts, mu, column, features, FEATURE)
                here = places(source_at, token, column, stride_token, stride_feature)
                offset = read_positions(
                    here, read, real, column, stretch, base, unclean, features, FULL
                )
                lengths += fold(sizes(offset, NORM), ROWS, KEPT)
                alongs += fold(offset * v[None, :], ROWS, KEPT)
            length = tl.sum(lengths, axis=1)
            along = tl.sum(alongs, axis=1) + tl.sum(of_nuclei, axis=0)
        lightness = tl.maximum(-q, 0.0)
        spread, pull = spread_and_pull(lightness, length, NORM)
        grad_charge = charge_gradient(
            q, along, spread, share, g_protons, g_electrons, g_sum, g_square, g_radius
        )
        grad_score = tl.where(real, grad_charge * slope, 0.0)
        if scores is not None:
            kept = grad_score.to(grad_scores.dtype.element_ty)
            tl.store(grad_scores + sample * tokens + token, kept, mask=inside)
        mass = (real.to(tl.float32) - lightness) * share
        mass = tl.where(length < 0, 0.0, mass)  # never true; gives it the layout of `length`
        pull *= g_radius * share
        if WHOLE:
            write(
                written_at, arriving, inside, token, column, offset, v, mass, pull, grad_score,
                scores, features, FEATURE, written_token, written_feature,
                arriving_token, arriving_feature, NORM, FULL,
            )  # fmt: skip
        else:
            for start in range(0, features, FEATURES):
                column = start + tl.arange(0, FEATURES)
                mu = read_vector(nucleus, column, features, FEATURE)
                v = pull_vector(
                    grad_nucleus, mean_direction, factor, g_radius, column, features, FEATURE
                )
                stretch, base = read_origin(stretches, shifts, mu, column, features, FEATURE)
                here = places(source_at, token, column, stride_token, stride_feature)
                offset = read_positions(
                    here, read, real, column, stretch, base, unclean, features, FULL
                )
                write(
                    written_at, arriving, inside, token, column, offset, v, mass, pull, grad_score,
                    scores, features, FEATURE, written_token, written_feature,
                    arriving_token, arriving_feature, NORM, FULL,
                )  # fmt: skip


@triton.jit
def read_origin(stretches, shifts, mu, column, features, feature):
    """The factor of the source and what to subtract from it for positions minus the nucleus."""
    if stretches is None:
        return every_position(column, feature), mu
    else:  # noqa: RET505  (the compiler drops one branch)
        inside = (column < features) & (column != feature)
        stretch = tl.load(stretches + column, mask=inside, other=0.0)
        return stretch, mu - tl.load(shifts + column, mask=inside, other=0.0)


@triton.jit
def pull_vector(grad_nucleus, mean_direction, factor, g_radius, column, features, feature):
    """V = gmu - gr s, per feature, 0 for the score."""
    of_nucleus = read_vector(grad_nucleus, column, features, feature) * factor
    return of_nucleus - g_radius * read_vector(mean_direction, column, features, feature)


@triton.jit
def write(
    written, arriving, inside, token, column, offset, v, mass, pull, grad_score, scores,
    features, feature, written_token, written_feature, arriving_token, arriving_feature,
    NORM: tl.constexpr, FULL: tl.constexpr,
):  # fmt: skip
    """The gradient of a tile: positions, scores in their column, plus what arrived."""
    valid = tile_mask(inside, column, features, FULL)
    grad = mass[:, None] * v[None, :] + pull[:, None] * directions(offset, NORM)
    if scores is None:
        grad = tl.where((column == feature)[None, :], grad_score[:, None], grad)
    if arriving is not None:
        there = places(arriving, token, column, arriving_token, arriving_feature)
        grad += tl.load(there, mask=valid, other=0.0).to(tl.float32)
    here = places(written, token, column, written_token, written_feature)
    tl.store(here, grad.to(written.dtype.element_ty), mask=valid)
