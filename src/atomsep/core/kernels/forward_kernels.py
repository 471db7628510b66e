"""The kernels of the forward pass; `forward.py` explains and launches them."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl

from atomsep.core.kernels.tile import (
    READ,
    charge_of,
    directions,
    every_position,
    fold,
    fold_tokens,
    places,
    position_of,
    read_lightness,
    read_positions,
    read_scores,
    sizes,
    spread_and_pull,
    tile_mask,
    unpack,
)


@triton.jit(do_not_specialize=[*READ, "steps"])
def atoms_kernel(
    source, scores, mask, copy, count, charge, table, mean_direction,
    tokens, features, sample_units, units, steps,
    ROWS: tl.constexpr, ALIGN: tl.constexpr, FEATURE: tl.constexpr, FULL: tl.constexpr,
    NORM: tl.constexpr, TOKENS: tl.constexpr, FEATURES: tl.constexpr,
):  # fmt: skip
    """One program: both readings of one sample, in tiles as wide as the latent."""
    tokens, features, width, stride_sample, stride_token, stride_feature = unpack(
        tokens, features, sample_units, units, scores, ROWS, ALIGN
    )
    sample = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, FEATURES)
    kept = (column < features) & (column != FEATURE)
    sums, protons, electrons, net, squares = first_reading(
        source, scores, mask, copy, charge, None, sample, 0, column, tokens, features, FEATURE,
        stride_sample, stride_token, stride_feature, steps, 1,
        FULL, 1 if ROWS else ALIGN, TOKENS, FEATURES,
    )  # fmt: skip
    per_token = 1 / tl.load(count + sample)
    mu = tl.where(kept, tl.sum(sums, axis=0) * per_token, 0.0)
    table_at = table + sample * (width + 5)
    tl.store(table_at + 5 + position_of(column, FEATURE), mu, mask=kept)
    tl.store(table_at, tl.sum(protons, axis=0))
    tl.store(table_at + 1, tl.sum(electrons, axis=0))
    tl.store(table_at + 2, tl.sum(net, axis=0))
    tl.store(table_at + 3, tl.sum(squares, axis=0))
    radius, sums = second_reading(
        source, scores, mask, None, sample, 0, column, mu, tokens, features, FEATURE,
        stride_sample, stride_token, stride_feature, steps,
        NORM, FULL, 1 if ROWS else ALIGN, TOKENS, FEATURES,
    )  # fmt: skip
    tl.store(table_at + 4, radius * per_token)
    s = mean_direction + sample * width + position_of(column, FEATURE)
    tl.store(s, sums * per_token, mask=kept)


@triton.jit(do_not_specialize=[*READ, "tiles", "chunks", "steps"])
def nucleus_kernel(
    source, scores, mask, copy, charge, lightness, scratch, arrivals,
    tokens, features, sample_units, units, tiles, chunks, steps,
    ROWS: tl.constexpr, ALIGN: tl.constexpr, FEATURE: tl.constexpr, FULL: tl.constexpr,
    TOKENS: tl.constexpr, FEATURES: tl.constexpr,
):  # fmt: skip
    """One program: sums over some tokens of one sample, for some of the features."""
    tokens, features, _, stride_sample, stride_token, stride_feature = unpack(
        tokens, features, sample_units, units, scores, ROWS, ALIGN
    )
    place = tl.num_programs(0) - 1 - tl.program_id(0)
    tile = place // chunks
    chunk = place % chunks
    sample = (tile // tiles).to(tl.int64)
    if (tile % tiles == 0) & (chunk == 0):
        tl.store(arrivals + sample, 0)
    row = scratch + tile.to(tl.int64) * (features + 4)
    column = chunk * FEATURES + tl.arange(0, FEATURES)
    sums, protons, electrons, net, squares = first_reading(
        source, scores, mask, copy, charge, lightness, sample, tile % tiles, column,
        tokens, features, FEATURE, stride_sample, stride_token, stride_feature, steps, chunk == 0,
        FULL, 1 if ROWS else ALIGN, TOKENS, FEATURES,
    )  # fmt: skip
    tl.store(row + column, tl.sum(sums, axis=0), mask=column < features)
    if chunk == 0:
        tl.store(row + features, tl.sum(protons, axis=0))
        tl.store(row + features + 1, tl.sum(electrons, axis=0))
        tl.store(row + features + 2, tl.sum(net, axis=0))
        tl.store(row + features + 3, tl.sum(squares, axis=0))


@triton.jit
def first_reading(
    source, scores, mask, copy, charge, lightness, sample, tile, column, tokens, features, feature,
    stride_sample, stride_token, stride_feature, steps, leads,
    FULL: tl.constexpr, TOGETHER: tl.constexpr, TOKENS: tl.constexpr, FEATURES: tl.constexpr,
):  # fmt: skip
    """Weighted positions, P, G, sum q and sum q², not yet summed over a tile's tokens.

    Writes the copy. If the program leads those that read the same tokens, it also writes the
    charges, and g in float32 where the second reading needs it.
    """
    sample_at = source + sample * stride_sample
    sums = tl.zeros((TOKENS // TOGETHER, FEATURES), tl.float32)
    protons = tl.zeros((TOKENS,), tl.float32)
    electrons = tl.zeros((TOKENS,), tl.float32)
    net = tl.zeros((TOKENS,), tl.float32)
    squares = tl.zeros((TOKENS,), tl.float32)
    for step in tl.range(0, steps, num_stages=1):
        token = (tile * steps + step) * TOKENS + tl.arange(0, TOKENS)
        inside = token < tokens
        real, score = read_scores(
            sample_at, scores, mask, sample, token, inside, tokens, feature,
            stride_token, stride_feature,
        )  # fmt: skip
        here = places(sample_at, token, column, stride_token, stride_feature)
        there_is = tile_mask(inside, column, features, FULL)
        block = tl.load(here, mask=there_is, other=0.0)
        if copy is not None:
            there = places(
                copy + sample * stride_sample, token, column, stride_token, stride_feature
            )
            tl.store(there, block, mask=there_is)
        if mask is not None:
            block = tl.where(real[:, None], block, 0.0)
        q, _ = charge_of(score)
        g = tl.maximum(-q, 0.0)
        sums += fold_tokens(block.to(tl.float32) * (1 - g)[:, None], TOGETHER)
        protons += tl.maximum(q, 0.0)
        electrons += g
        net += q
        squares += q * q
        if leads:
            kept = q.to(charge.dtype.element_ty)
            tl.store(charge + sample * tokens + token, kept, mask=inside)
            if lightness is not None:
                tl.store(lightness + sample * tokens + token, g, mask=inside)
    return sums, protons, electrons, net, squares


@triton.jit
def second_reading(
    source, scores, mask, lightness, sample, tile, column, mu, tokens, features, feature,
    stride_sample, stride_token, stride_feature, steps,
    NORM: tl.constexpr, FULL: tl.constexpr, TOGETHER: tl.constexpr, TOKENS: tl.constexpr,
    FEATURES: tl.constexpr,
):  # fmt: skip
    """Sums of g |p - mu| and of g u."""
    sample_at = source + sample * stride_sample
    stretch = every_position(column, feature)
    radius = tl.zeros((TOKENS,), tl.float32)
    sums = tl.zeros((TOKENS // TOGETHER, FEATURES), tl.float32)
    for step in tl.range(0, steps, num_stages=1):
        token = (tile * steps + step) * TOKENS + tl.arange(0, TOKENS)
        inside = token < tokens
        real, g = read_lightness(
            sample_at, scores, mask, lightness, sample, token, inside, tokens, feature,
            stride_token, stride_feature,
        )  # fmt: skip
        here = places(sample_at, token, column, stride_token, stride_feature)
        offset = read_positions(here, inside, real, column, stretch, mu, mask, features, FULL)
        length = tl.sum(sizes(offset, NORM), axis=1)
        spread, pull = spread_and_pull(g, length, NORM)
        radius += g * spread
        sums += fold_tokens(directions(offset, NORM) * pull[:, None], TOGETHER)
    return tl.sum(radius, axis=0), tl.sum(sums, axis=0)


@triton.jit
def read_electrons(
    source, lightness, order, sample, begin, end, column, mu, tokens, features, feature,
    stride_sample, stride_token, stride_feature,
    NORM: tl.constexpr, FULL: tl.constexpr, TOKENS: tl.constexpr, FEATURES: tl.constexpr,
    SHARE: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """The same sums over a share of the tokens, of which only the electrons are read."""
    listed_at = sample * tokens + begin
    listed = list_electrons(lightness + listed_at, order + listed_at, end - begin, SHARE)
    sample_at = source + sample * stride_sample
    stretch = every_position(column, feature)
    radius = tl.zeros((TOKENS,), tl.float32)
    sums = tl.zeros((TOKENS, FEATURES), tl.float32)
    for start in tl.range(0, listed, TOKENS, num_stages=STAGES):
        place = start + tl.arange(0, TOKENS)
        inside = place < listed
        token = begin + tl.load(order + listed_at + place, mask=inside, other=0).to(tl.int32)
        g = tl.load(lightness + listed_at + place, mask=inside, other=0.0)
        here = places(sample_at, token, column, stride_token, stride_feature)
        offset = read_positions(here, inside, inside, column, stretch, mu, None, features, FULL)
        length = tl.sum(sizes(offset, NORM), axis=1)
        spread, pull = spread_and_pull(g, length, NORM)
        radius += g * spread
        sums += directions(offset, NORM) * pull[:, None]
    return tl.sum(radius, axis=0), tl.sum(sums, axis=0)


@triton.jit
def list_electrons(lightness, order, tokens, SHARE: tl.constexpr):
    """Move the electrons of a share of the tokens to its front, and return their number.

    Their g replaces what was there, and `order` says which token each one was. No other program
    uses this share.
    """
    token = tl.arange(0, SHARE)
    g = tl.load(lightness + token, mask=token < tokens, other=0.0)
    electron = (g > 0).to(tl.int32)
    place = tl.cumsum(electron, axis=0) - 1
    tl.debug_barrier()  # every warp has read before one writes
    tl.store(lightness + place, g, mask=g > 0)
    tl.store(order + place, token.to(tl.int16), mask=g > 0)
    tl.debug_barrier()
    return tl.sum(electron, axis=0)


@triton.jit(do_not_specialize=[*READ, "samples", "first_tiles", "tiles", "span"])
def radius_kernel(
    source, scores, mask, lightness, order, count, scratch, arrivals, table, mean_direction,
    tokens, features, sample_units, units, samples, first_tiles, tiles, span,
    ROWS: tl.constexpr, ALIGN: tl.constexpr, FEATURE: tl.constexpr, FULL: tl.constexpr,
    NORM: tl.constexpr, WHOLE: tl.constexpr, TOKENS: tl.constexpr, FEATURES: tl.constexpr,
    STEPS: tl.constexpr, KEPT: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """One program: the spread of some tokens of one sample around its nucleus."""
    tokens, features, width, stride_sample, stride_token, stride_feature = unpack(
        tokens, features, sample_units, units, scores, ROWS, ALIGN
    )
    pitch = features + 4
    place = tl.program_id(0)
    sample = (place // tiles).to(tl.int64)
    tile = place % tiles
    per_token = 1 / tl.load(count + sample)
    of_first = scratch + sample * first_tiles * pitch
    of_second = scratch + (samples.to(tl.int64) * first_tiles + sample * tiles) * pitch
    row = of_second + tile * pitch
    table_at = table + sample * (width + 5)
    if WHOLE:
        column = tl.arange(0, FEATURES)
        mu = nucleus_of(of_first, column, features, FEATURE, first_tiles, pitch, per_token)
        if ROWS:
            begin = tile * span
            end = tl.minimum(begin + span, tokens)
            radius, sums = read_electrons(
                source, lightness, order, sample, begin, end, column, mu, tokens, features, FEATURE,
                stride_sample, stride_token, stride_feature,
                NORM, FULL, TOKENS, FEATURES, TOKENS * STEPS, STAGES,
            )  # fmt: skip
        else:
            radius, sums = second_reading(
                source, scores, mask, lightness, sample, tile, column, mu, tokens, features,
                FEATURE, stride_sample, stride_token, stride_feature, STEPS,
                NORM, FULL, ALIGN, TOKENS, FEATURES,
            )  # fmt: skip
        tl.store(row + column, sums, mask=column < features)
        if tile == 0:
            kept = (column < features) & (column != FEATURE)
            tl.store(table_at + 5 + position_of(column, FEATURE), mu, mask=kept)
    else:
        sample_at = source + sample * stride_sample
        token = tile * TOKENS + tl.arange(0, TOKENS)
        inside = token < tokens
        real, g = read_lightness(
            sample_at, scores, mask, lightness, sample, token, inside, tokens, FEATURE,
            stride_token, stride_feature,
        )  # fmt: skip
        read = inside
        if ROWS:
            read = g > 0
        folded = tl.zeros((TOKENS, KEPT), tl.float32)
        for start in range(0, features, FEATURES):
            column = start + tl.arange(0, FEATURES)
            mu = nucleus_of(of_first, column, features, FEATURE, first_tiles, pitch, per_token)
            here = places(sample_at, token, column, stride_token, stride_feature)
            stretch = every_position(column, FEATURE)
            offset = read_positions(here, read, real, column, stretch, mu, mask, features, FULL)
            folded += fold(sizes(offset, NORM), ROWS, KEPT)
        length = tl.sum(folded, axis=1)
        spread, pull = spread_and_pull(g, length, NORM)
        radius = tl.sum(g * spread, axis=0)
        for start in range(0, features, FEATURES):
            column = start + tl.arange(0, FEATURES)
            mu = nucleus_of(of_first, column, features, FEATURE, first_tiles, pitch, per_token)
            here = places(sample_at, token, column, stride_token, stride_feature)
            stretch = every_position(column, FEATURE)
            offset = read_positions(here, read, real, column, stretch, mu, mask, features, FULL)
            sums = tl.sum(directions(offset, NORM) * pull[:, None], axis=0)
            tl.store(row + column, sums, mask=column < features)
            if tile == 0:
                kept = (column < features) & (column != FEATURE)
                tl.store(table_at + 5 + position_of(column, FEATURE), mu, mask=kept)
    tl.store(row + features, radius)
    tl.debug_barrier()
    if tl.atomic_add(arrivals + sample, 1, sem="acq_rel") == tiles - 1:
        finish(
            of_first, of_second, table_at, mean_direction + sample * width, features, FEATURE,
            first_tiles, tiles, pitch, per_token, FEATURES,
        )  # fmt: skip


@triton.jit
def finish(
    of_first, of_second, table_at, mean_direction, features, feature, first_tiles, tiles, pitch,
    per_token, FEATURES: tl.constexpr,
):  # fmt: skip
    """Add up what both launches left of a sample; its nucleus is already in the table."""
    columns: tl.constexpr = FEATURES if FEATURES < 256 else 256
    for start in range(0, features, columns):
        column = start + tl.arange(0, columns)
        inner = column < features
        sums = column_sums(of_second, column, inner, tiles, pitch) * per_token
        tl.store(mean_direction + position_of(column, feature), sums, inner & (column != feature))
    index = tl.arange(0, 4)
    tallies = column_sums(of_first, features + index, index < 4, first_tiles, pitch)
    tl.store(table_at + index, tallies)
    spread = column_sums(of_second, features + index, index < 1, tiles, pitch)
    tl.store(table_at + 4 + index, spread * per_token, mask=index < 1)


@triton.jit
def column_sums(rows, column, inner, tiles, pitch, TOGETHER: tl.constexpr = 8):
    """What the tiles of a sample left in some columns, added in order, several at a time."""
    columns: tl.constexpr = column.shape[0]
    several: tl.constexpr = TOGETHER if columns <= 256 else 2048 // columns if columns < 2048 else 1
    sums = tl.zeros(column.shape, tl.float32)
    for above in range(0, tiles, several):
        tile = above + tl.arange(0, several)
        at = rows + tile[:, None] * pitch + column[None, :]
        valid = (tile < tiles)[:, None] & inner[None, :]
        # from the cache that all programs share: others in this launch may have written it
        sums += tl.sum(tl.load(at, mask=valid, other=0.0, cache_modifier=".cg"), axis=0)
    return sums


@triton.jit
def nucleus_of(rows, column, features, feature, tiles, pitch, per_token):
    """The nucleus by feature, 0 for the score."""
    inner = (column < features) & (column != feature)
    return column_sums(rows, column, inner, tiles, pitch) * per_token
