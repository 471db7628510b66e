"""Atoms: charges, sums, nucleus, radius and mean direction in one launch.

After the scores have been read for the charges, two looks at the tokens (`looks.py`). The first
sums mass-weighted positions into the nucleus; the second, at electrons alone where tokens are
rows, sums

    r = (1/N) sum g |p - mu|        s = (1/N) sum g u        (g = max(-q, 0))

Bytes: the latent once from device memory and again from the cache; N charges and 2h + 5 numbers a
sample out; the copy, where one is due, is written by the first look. Scratch memory is 4 bytes a
token for its charge, 4 more for the list of electrons where tokens are rows, and h + 8 float32 a
tile. Bound by device memory, with the arithmetic of the second look not far below.

A sample is cut into tiles of tokens. A program leaves the sums of its tile in scratch memory, and
the last of a sample's programs to arrive adds them up, always in the same order: no sum depends
on who comes last. The second look at a tile comes `lag` programs after its first, taken by a
program that has done its own first look before. Programs draw tickets, so all that a program waits
for was begun before it, and nothing waits before it has done its first look: no program waits for
ever, however few run at a time. By the time a program has done its first look, those before it
have done theirs too, so that a `lag` of a few samples finds the nucleus ready and the tile still
in the cache. A small sample is one tile: its program does everything and waits for none.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl
from torch import Tensor

from atomsep.kernels.blocks import ceil_div, forward_blocks, lead
from atomsep.kernels.looks import count_charges, first_look, second_look
from atomsep.kernels.read import position_of, unpack
from atomsep.kernels.strides import front, geometry

if TYPE_CHECKING:
    from atomsep.statistics import Reading

FIELDS = 5
"""Per-sample sums: protons, electrons, charge sum, charge square, radius."""

TALLIES = 8
"""Room for the numbers that a tile leaves beside its sums over features; see `looks.py`."""


def measure_forward(
    source: Tensor,
    scores: Tensor | None,
    mask: Tensor | None,
    count: Tensor,
    reading: Reading,
    copy: bool,
) -> tuple[Tensor | None, Tensor, Tensor, Tensor, Tensor]:
    """The twin of `atomsep.statistics.forward_slabs`.

    Args:
        source: the tokens in their layout.
        scores: `(M, N)` where `reading.feature` is None.
        mask: True on real tokens, `(M, N)`.
        count: number of real tokens, `(M,)`, float32.
        reading: layout, feature and norm.
        copy: whether to write a copy of the source as well.

    Returns:
        The copy or None, charge `(M, N)`, the fields `(5, M)` (protons, electrons, charge sum,
        charge square, radius), nucleus and mean direction s, both `(M, h')`.
    """
    layout, feature, norm = reading
    tokens = layout.tokens(source)
    samples, length, features = tokens.shape
    shape = geometry(tokens)
    blocks = forward_blocks(length, features, source.element_size(), shape.rows)
    tiles = ceil_div(length, blocks.tokens * blocks.steps)
    copied = layout.empty_like(source) if copy else None
    target = None
    if copied is not None:
        target = layout.tokens(copied)
        if target.stride() != tokens.stride():
            copied.copy_(source)
            target = None
        elif layout.skip:
            front(copied, layout).copy_(front(source, layout))
    width, score_at = (
        (features, features) if feature is None else (features - 1, feature % features)
    )
    new = partial(torch.empty, dtype=torch.float32, device=source.device)
    charge = torch.empty_like(tokens[..., 0], memory_format=torch.contiguous_format)
    fields, nucleus, mean_direction = new(FIELDS, samples), new(samples, width), new(samples, width)
    scratch, charges = new(samples * tiles, features + TALLIES), new(samples, length)
    electrons_at = new(samples, length, dtype=torch.int32) if shape.rows else None
    arrivals = None
    lag = 0
    if tiles > 1:
        arrivals = torch.zeros(1 + 2 * samples, dtype=torch.int32, device=source.device)
        lag = lead(samples, tiles)
    with torch.cuda.device_of(source):
        forward_kernel[(samples * tiles + lag,)](
            tokens, None if scores is None else scores.contiguous(),
            None if mask is None else mask.contiguous(), count, target,
            charge, fields, nucleus, mean_direction, scratch, charges, electrons_at, arrivals,
            samples, shape.tokens, shape.features, score_at,
            shape.sample, shape.wide, lag, tiles, blocks.steps,
            NORM=norm, ROWS=shape.rows, ALIGN=shape.align, WHOLE=blocks.features >= features,
            SINGLE=tiles == 1, TOKENS=blocks.tokens, FEATURES=blocks.features, KEPT=blocks.kept,
            LINE=blocks.line, STAGES=blocks.stages, num_warps=blocks.warps, enable_fp_fusion=True,
        )  # fmt: skip
    return copied, charge, fields, nucleus, mean_direction


@triton.jit(
    do_not_specialize=["samples", "tokens", "features", "feature", "sample_units", "units", "lag"]
)
def forward_kernel(
    source, scores, mask, count, copy,
    charge, fields, nucleus, mean_direction, scratch, charges, electrons_at, arrivals,
    samples, tokens, features, feature, sample_units, units, lag, tiles, steps,
    NORM: tl.constexpr, ROWS: tl.constexpr, ALIGN: tl.constexpr, WHOLE: tl.constexpr,
    SINGLE: tl.constexpr, TOKENS: tl.constexpr, FEATURES: tl.constexpr,
    KEPT: tl.constexpr, LINE: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """One program: the first looks at its tile, the second at the tile `lag` places before."""
    tokens, features, stride_sample, stride_token, stride_feature = unpack(
        tokens, features, sample_units, units, ROWS, ALIGN
    )
    width = features
    if scores is None:
        width = features - 1
    pitch = features + 8
    share = steps * TOKENS
    tile = tl.program_id(0)
    if not SINGLE:
        tile = tl.atomic_add(arrivals, 1, sem="relaxed")  # the ticket
    if tile < samples * tiles:
        sample = (tile // tiles).to(tl.int64)
        first = (tile % tiles) * share
        many = tl.minimum(share, tokens - first)
        row = scratch + tile.to(tl.int64) * pitch
        sample_at = source + sample * stride_sample
        listed = electrons_at
        if ROWS:
            listed = electrons_at + sample * tokens
        copy_at = copy
        if copy is not None:
            copy_at = copy + sample * stride_sample
        count_charges(
            sample_at, scores, mask, charge, charges + sample * tokens, listed, row, sample,
            first, many, tokens, features, feature, stride_token, stride_feature, ROWS, LINE,
        )  # fmt: skip
        tl.debug_barrier()
        first_look(
            sample_at, copy_at, mask, charges + sample * tokens, row, first, many, features,
            stride_token, stride_feature, ROWS, WHOLE, TOKENS, FEATURES, STAGES,
        )  # fmt: skip
        if arrive(arrivals, 1 + sample, SINGLE) == tiles - 1:
            rows = scratch + sample * tiles * pitch
            per_token = 1 / tl.load(count + sample)
            to = nucleus + sample * width
            finish(rows, to, features, feature, tiles, pitch, per_token, FEATURES)
            index = tl.arange(0, 4)
            tl.store(fields + index * samples + sample, tally(rows + features, tiles, pitch))
            arrive(arrivals, 1 + sample, SINGLE)  # the nucleus is ready
    late = tile - lag
    if late >= 0:
        sample = (late // tiles).to(tl.int64)
        first = (late % tiles) * share
        many = tl.minimum(share, tokens - first)
        row = scratch + late.to(tl.int64) * pitch
        listed = electrons_at
        if ROWS:
            listed = electrons_at + sample * tokens
        if not SINGLE:
            while tl.atomic_add(arrivals + 1 + sample, 0, sem="acquire") <= tiles:
                pass
        second_look(
            source + sample * stride_sample, scores, mask, charges + sample * tokens, listed,
            nucleus + sample * width, row, first, many, features, feature,
            stride_token, stride_feature, NORM, ROWS, WHOLE, TOKENS, FEATURES, KEPT, STAGES,
        )  # fmt: skip
        if arrive(arrivals, 1 + samples + sample, SINGLE) == tiles - 1:
            rows = scratch + sample * tiles * pitch
            per_token = 1 / tl.load(count + sample)
            to = mean_direction + sample * width
            finish(rows, to, features, feature, tiles, pitch, per_token, FEATURES)
            index = tl.arange(0, 4)
            radius = tally(rows + features, tiles, pitch) * per_token
            tl.store(fields + (4 + index) * samples + sample, radius, mask=index == 0)


@triton.jit
def arrive(arrivals, index, SINGLE: tl.constexpr):
    """Make what the program wrote visible to those who come after; how many came before."""
    tl.debug_barrier()
    if SINGLE:
        return 0
    else:  # noqa: RET505  (the compiler drops one branch)
        return tl.atomic_add(arrivals + index, 1, sem="acq_rel")


@triton.jit
def finish(rows, to, features, feature, tiles, pitch, per_token, FEATURES: tl.constexpr):
    """Add up the sums over features that a sample's tiles left, and drop the score's column."""
    columns: tl.constexpr = FEATURES if FEATURES < 256 else 256
    for start in range(0, features, columns):
        column = start + tl.arange(0, columns)
        inside = column < features
        sums = tl.zeros((columns,), tl.float32)
        for above in range(0, tiles, 16):
            tile = above + tl.arange(0, 16)
            at = rows + tile[:, None] * pitch + column[None, :]
            left = tl.load(at, (tile < tiles)[:, None] & inside[None, :], 0.0, cache_modifier=".cg")
            sums += tl.sum(left, axis=0)
        kept = inside & (column != feature)
        tl.store(to + position_of(column, feature), sums * per_token, mask=kept)


@triton.jit
def tally(at, tiles, pitch):
    """Add up the four numbers that a sample's tiles left beside those sums."""
    index = tl.arange(0, 4)
    sums = tl.zeros((4,), tl.float32)
    for above in range(0, tiles, 16):
        tile = above + tl.arange(0, 16)
        here = at + tile[:, None] * pitch + index[None, :]
        sums += tl.sum(tl.load(here, (tile < tiles)[:, None], 0.0, cache_modifier=".cg"), axis=0)
    return sums
