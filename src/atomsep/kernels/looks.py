"""Three looks at a tile of tokens that make an atom: pieces of the forward kernel.

`count_charges` reads the scores alone, one thread a token, and writes every charge in float32:
computed where the tile is used, it would be computed again by each of the threads that share a
token, and cost more than the sums. It also lists the electrons, so that the second look at tokens
that are rows works through a dense list of them. `first_look` then sums all real tokens, and
`second_look` electrons. Sums go to the tile's row of scratch memory: one number a feature, then
protons, electrons, charge sum, charge square (later the radius in the first place), and how many
electrons there are.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl

from atomsep.kernels.read import (
    charge_of,
    directions,
    fold,
    keep_positions,
    places,
    pull_of,
    read_offsets,
    read_scores,
    read_vector,
    sizes,
    spread_of,
)


@triton.jit
def count_charges(
    sample_at, scores, mask, charge, charges, electrons_at, row, sample, first, many,
    tokens, features, feature, stride_token, stride_feature,
    ROWS: tl.constexpr, LINE: tl.constexpr,
):  # fmt: skip
    """Charges of `many` tokens from the `first` on, their four sums, and the list of electrons.

    Padding has the charge 2, which no token has.
    """
    protons = tl.zeros((LINE,), tl.float32)
    electrons = tl.zeros((LINE,), tl.float32)
    net = tl.zeros((LINE,), tl.float32)
    squares = tl.zeros((LINE,), tl.float32)
    found = 0
    for start in range(0, many, LINE):
        token = first + start + tl.arange(0, LINE)
        inside = token < first + many
        real, score = read_scores(
            sample_at, scores, mask, sample, token, inside, tokens, feature,
            stride_token, stride_feature,
        )  # fmt: skip
        q, _ = charge_of(score)
        kept = q.to(charge.dtype.element_ty)
        tl.store(charge + sample * tokens + token, kept, mask=inside)
        tl.store(charges + token, tl.where(real, q, 2.0), mask=inside)
        protons += tl.maximum(q, 0.0)
        electrons += tl.maximum(-q, 0.0)
        net += q
        squares += q * q
        if ROWS:
            electron = (q < 0).to(tl.int32)
            rank = found + tl.cumsum(electron, axis=0) - 1
            tl.store(electrons_at + first + rank, token, mask=q < 0)
            found += tl.sum(electron, axis=0)
    tl.store(row + features, tl.sum(protons, axis=0))
    tl.store(row + features + 1, tl.sum(electrons, axis=0))
    tl.store(row + features + 2, tl.sum(net, axis=0))
    tl.store(row + features + 3, tl.sum(squares, axis=0))
    if ROWS:
        tl.store(row + features + 4, found)


@triton.jit
def first_look(
    sample_at, copy_at, mask, charges, row, first, many, features, stride_token, stride_feature,
    ROWS: tl.constexpr, WHOLE: tl.constexpr,
    TOKENS: tl.constexpr, FEATURES: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Mass-weighted sums of the positions of `many` tokens from the `first` on."""
    if WHOLE:
        sum_features(
            sample_at, copy_at, mask, charges, row, first, many, 0, features,
            stride_token, stride_feature, ROWS, TOKENS, FEATURES, STAGES,
        )  # fmt: skip
    else:
        for start in range(0, features, FEATURES):
            sum_features(
                sample_at, copy_at, mask, charges, row, first, many, start, features,
                stride_token, stride_feature, ROWS, TOKENS, FEATURES, STAGES,
            )  # fmt: skip


@triton.jit
def sum_features(
    sample_at, copy_at, mask, charges, row, first, many, start, features,
    stride_token, stride_feature,
    ROWS: tl.constexpr,
    TOKENS: tl.constexpr, FEATURES: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """The same of some features. Sums stay with the threads until the last tile is in."""
    column = start + tl.arange(0, FEATURES)
    inside = (column < features)[None, :]
    sums = tl.zeros((TOKENS, FEATURES), tl.float32)
    for begin in tl.range(0, many, TOKENS, num_stages=STAGES):
        step = begin + tl.arange(0, TOKENS)
        token = first + step
        q = tl.load(charges + token, mask=step < many, other=2.0)
        read = step < many
        if (ROWS and copy_at is None) and mask is not None:
            read = q < 2
        here = places(sample_at, token, column, stride_token, stride_feature)
        block = tl.load(here, mask=read[:, None] & inside, other=0.0)
        if copy_at is not None:
            there = places(copy_at, token, column, stride_token, stride_feature)
            tl.store(there, block, mask=read[:, None] & inside)
        if mask is not None:
            block = tl.where((q < 2)[:, None], block, 0.0)
        mass = tl.where(q < 2, 1 + tl.minimum(q, 0.0), 0.0)
        sums += block.to(tl.float32) * mass[:, None]
    tl.store(row + column, tl.sum(sums, axis=0), mask=column < features)


@triton.jit
def second_look(
    sample_at, scores, mask, charges, electrons_at, nucleus, row, first, many,
    features, feature, stride_token, stride_feature,
    NORM: tl.constexpr, ROWS: tl.constexpr, WHOLE: tl.constexpr,
    TOKENS: tl.constexpr, FEATURES: tl.constexpr,
    KEPT: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Sums of g |p - mu| and g u. Features in chunks are read twice: one tile of tokens then."""
    radius = tl.zeros((TOKENS,), tl.float32)
    if ROWS:
        many = tl.load(row + features + 4, cache_modifier=".cg").to(tl.int32)
    if WHOLE:
        column = tl.arange(0, FEATURES)
        mu = read_vector(nucleus, column, features, feature, True)
        sums = tl.zeros((TOKENS, FEATURES), tl.float32)
        for begin in tl.range(0, many, TOKENS, num_stages=STAGES):
            token, read, lightness = read_electrons(
                charges, electrons_at, first, begin, many, ROWS, TOKENS
            )
            here = places(sample_at, token, column, stride_token, stride_feature)
            offset = read_offsets(here, read, lightness > 0, column, mu, mask, features, ROWS)
            position = keep_positions(offset, column, feature, scores)
            length = tl.sum(sizes(position, NORM), axis=1)
            radius += lightness * spread_of(length, NORM)
            sums += directions(offset, NORM) * pull_of(lightness, length, NORM)[:, None]
        tl.store(row + column, tl.sum(sums, axis=0), mask=column < features)
    else:
        token, read, lightness = read_electrons(charges, electrons_at, first, 0, many, ROWS, TOKENS)
        folded = tl.zeros((TOKENS, KEPT), tl.float32)
        for start in range(0, features, FEATURES):
            column = start + tl.arange(0, FEATURES)
            mu = read_vector(nucleus, column, features, feature, True)
            here = places(sample_at, token, column, stride_token, stride_feature)
            offset = read_offsets(here, read, lightness > 0, column, mu, mask, features, ROWS)
            position = keep_positions(offset, column, feature, scores)
            folded += fold(sizes(position, NORM), ROWS, KEPT)
        length = tl.sum(folded, axis=1)
        radius += lightness * spread_of(length, NORM)
        pull = pull_of(lightness, length, NORM)
        for start in range(0, features, FEATURES):
            column = start + tl.arange(0, FEATURES)
            mu = read_vector(nucleus, column, features, feature, True)
            here = places(sample_at, token, column, stride_token, stride_feature)
            offset = read_offsets(here, read, lightness > 0, column, mu, mask, features, ROWS)
            sums = tl.sum(directions(offset, NORM) * pull[:, None], axis=0)
            tl.store(row + column, sums, mask=column < features)
    tl.store(row + features, tl.sum(radius, axis=0))


@triton.jit
def read_electrons(
    charges, electrons_at, first, begin, many, ROWS: tl.constexpr, TOKENS: tl.constexpr
):
    """Tokens from the list of electrons where they are rows, else all: which, valid, max(-q, 0)."""
    step = begin + tl.arange(0, TOKENS)
    read = step < many
    token = first + step
    if ROWS:
        token = tl.load(electrons_at + token, mask=read, other=0)
    q = tl.load(charges + token, mask=read, other=0.0)
    return token, read, tl.maximum(-q, 0.0)
