"""How a program reads tokens: the charges of a block of tokens, and a tile of their positions.

A tile is `(tokens, features)` whatever the memory layout; strides say where its numbers are, and
the compiler reads along the one that is 1. Tokens are rows where features are adjacent
(channels-last, `(M, L, C)`) and planes where tokens are (contiguous NCHW). Padding may hold
anything, even NaN: it is replaced by zero. Addresses are 64-bit throughout.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl

READ = ("tokens", "features", "sample_units", "units")
"""Arguments of every kernel that change between batches, so that none is compiled for them."""


@triton.jit
def charge_of(score):
    """Charge q = tanh(score / 2), and its slope (1 - q²) / 2.

    With e = exp(-|score|), q = (1 - e) / (1 + e), or half the score where that would cancel, and
    the slope is 2 e / (1 + e)², which keeps its digits where q is near 1.
    """
    size = tl.abs(score)
    decay = tl.exp(-size)
    part = 1 / (1 + decay)
    magnitude = tl.where(size < 1e-3, 0.5 * size, (1 - decay) * part)
    return tl.where(score < 0, -magnitude, magnitude), 2 * decay * part * part


@triton.jit
def unpack(tokens, features, sample_units, units, scores, ROWS: tl.constexpr, ALIGN: tl.constexpr):
    """N, h, h' and the strides of samples, tokens and features from a `Geometry`."""
    sample = sample_units.to(tl.int64) * ALIGN
    wide = units.to(tl.int64) * ALIGN
    if ROWS:
        features *= ALIGN
    else:
        tokens *= ALIGN
    width = features
    if scores is None:  # the score is one of the features
        width = features - 1
    if ROWS:
        return tokens, features, width, sample, wide, 1
    else:  # noqa: RET505  (the compiler drops one branch)
        return tokens, features, width, sample, 1, wide


@triton.jit
def read_mask(mask, place, inside):
    """Which of the tokens inside are real."""
    if mask is None:
        return inside
    else:  # noqa: RET505  (the compiler drops one branch)
        return inside & tl.load(mask + place, mask=inside, other=0)


@triton.jit
def read_scores(
    sample_at, scores, mask, sample, token, inside, tokens, feature, stride_token, stride_feature
):
    """Which of the tokens inside are real, and their scores in float32, 0 where they are not.

    The score is a feature of the token, or comes from a separate tensor `(M, N)`.
    """
    place = sample * tokens + token
    real = read_mask(mask, place, inside)
    if scores is None:
        feature_at = sample_at + feature * stride_feature
        raw = tl.load(feature_at + token.to(tl.int64) * stride_token, mask=real, other=0.0)
    else:
        raw = tl.load(scores + place, mask=real, other=0.0)
    return real, raw.to(tl.float32)


@triton.jit
def read_lightness(
    sample_at, scores, mask, lightness, sample, token, inside, tokens, feature,
    stride_token, stride_feature,
):  # fmt: skip
    """Which of the tokens inside are real, and g = max(-q, 0).

    Read from memory where an earlier pass left it: every thread with a part of a token needs it.
    """
    if lightness is None:
        real, score = read_scores(
            sample_at, scores, mask, sample, token, inside, tokens, feature,
            stride_token, stride_feature,
        )  # fmt: skip
        q, _ = charge_of(score)
        return real, tl.maximum(-q, 0.0)
    else:  # noqa: RET505  (the compiler drops one branch)
        place = sample * tokens + token
        return read_mask(mask, place, inside), tl.load(lightness + place, mask=inside, other=0.0)


@triton.jit
def read_vector(at, column, features, feature):
    """A sample's vector of h' numbers by feature, 0 for the score."""
    kept = (column < features) & (column != feature)
    return tl.load(at + position_of(column, feature), mask=kept, other=0.0)


@triton.jit
def read_gradients(grad_table, at, factor):
    """A sample's gradients of P, G, sum q, sum q² and r."""
    return (
        tl.load(grad_table + at) * factor,
        tl.load(grad_table + at + 1) * factor,
        tl.load(grad_table + at + 2) * factor,
        tl.load(grad_table + at + 3) * factor,
        tl.load(grad_table + at + 4) * factor,
    )


@triton.jit
def charge_gradient(q, along, spread, share, g_protons, g_electrons, g_sum, g_square, g_radius):
    """Gradients of charges, from those of the statistics, p·v and |p - mu|."""
    of_electron = share * (along - g_radius * spread) - g_electrons
    of_all = g_sum + 2 * q * g_square
    return of_all + (tl.where(q > 0, g_protons, 0.0) + tl.where(q < 0, of_electron, 0.0))


@triton.jit
def position_of(column, feature):
    """The column of a feature in the nucleus, which has none for the score."""
    return column - (column > feature).to(tl.int32)


@triton.jit
def places(sample_at, token, column, stride_token, stride_feature):
    """Addresses of a tile."""
    along_tokens = token.to(tl.int64)[:, None] * stride_token
    return sample_at + along_tokens + column.to(tl.int64)[None, :] * stride_feature


@triton.jit
def tile_mask(token, column, features, FULL: tl.constexpr):
    """Which numbers of a tile exist: those of these tokens, up to the last feature.

    FULL where the features fill all tiles: a mask that is all true still takes registers.
    """
    if FULL:
        return token[:, None]
    else:  # noqa: RET505  (the compiler drops one branch)
        return token[:, None] & (column < features)[None, :]


@triton.jit
def every_position(column, feature):
    """Stretch of positions that are the source itself: 0 for the score, else 1."""
    return tl.where(column == feature, 0.0, 1.0)


@triton.jit
def read_positions(here, read, clean, column, stretch, base, mask, features, FULL: tl.constexpr):
    """Source times `stretch` minus `base` in float32: positions minus the nucleus, 0 for the score.

    Finite but meaningless where `read` is false. A mask that changes along the direction of
    reading would split the loads, so where tokens are planes a masked latent is read whole, and
    tokens that are not `clean` are replaced.
    """
    block = tl.load(here, mask=tile_mask(read, column, features, FULL), other=0.0)
    if mask is not None:
        block = tl.where(clean[:, None], block, 0.0)
    return block.to(tl.float32) * stretch[None, :] - base[None, :]


@triton.jit
def sizes(offset, NORM: tl.constexpr):
    """What a norm sums: squares, or absolute values."""
    return offset * offset if NORM == 2 else tl.abs(offset)


@triton.jit
def fold(tile, ROWS: tl.constexpr, KEPT: tl.constexpr):
    """Sums over features as far as one thread holds them, `(tokens, KEPT)`.

    Any KEPT is correct; the rule in `blocks.py` picks the one that needs no exchange.
    """
    several: tl.constexpr = tile.shape[1] // KEPT
    if ROWS:  # a thread's features lie together
        return tl.sum(tl.reshape(tile, (tile.shape[0], KEPT, several)), axis=2)
    else:  # noqa: RET505  (the compiler drops one branch)
        return tl.sum(tl.reshape(tile, (tile.shape[0], several, KEPT)), axis=1)


@triton.jit
def fold_tokens(tile, TOGETHER: tl.constexpr):
    """Sums over adjacent tokens, `(tokens / TOGETHER, features)`.

    Any TOGETHER is correct; with as many as one thread reads at once, the sum needs no exchange.
    """
    if TOGETHER == 1:
        return tile
    else:  # noqa: RET505  (the compiler drops one branch)
        apart: tl.constexpr = tile.shape[0] // TOGETHER
        return tl.sum(tl.reshape(tile, (apart, TOGETHER, tile.shape[1])), axis=1)


@triton.jit
def spread_and_pull(lightness, length, NORM: tl.constexpr):
    """|p - mu| from the sum of sizes, and max(-q, 0), divided by it for norm 2.

    The second weights the `directions`; it is 0 on the nucleus, which has no direction.
    """
    if NORM == 2:
        somewhere = length > 1.2e-38  # less is flushed to 0, whose reciprocal root is infinite
        inverse = tl.where(somewhere, tl.rsqrt(tl.where(somewhere, length, 1.0)), 0.0)
        return length * inverse, lightness * inverse
    else:  # noqa: RET505  (the compiler drops one branch)
        return length, lightness


@triton.jit
def directions(offset, NORM: tl.constexpr):
    """Positions minus mu for norm 2, its signs for norm 1."""
    if NORM == 2:
        return offset
    return tl.where(offset > 0, 1.0, 0.0) - tl.where(offset < 0, 1.0, 0.0)
