"""How much work one program takes: every size that can be tuned, and the rules that choose it.

The rules look at the shape alone, so a shape is compiled once, always runs the same way and never
waits for a search. `tokens x features` is the tile that a program holds in registers. Tiles as
wide as the latent are read once per pass; a program then works through `steps` of them along the
tokens. Narrower tiles walk over the features instead, in one step, and read them again from the
cache where a sum over features has to be known first: more threads then share the work that is
done once per token.
"""

from __future__ import annotations

from typing import NamedTuple

WAVE = 1056
"""Programs that keep a large chip busy: eight on each of 132 multiprocessors."""

WARP_TILE = 1024
"""Unit in which tiles are sized, in elements: one warp with 32 per thread."""

MOST_TOKENS = 128
"""Most tokens in a tile of few features."""

WIDEST_ROWS = 4096
"""Widest tile where features are adjacent; beyond it, `CHUNK` features at a time."""

WIDEST_PLANES = 256
"""Widest tile where tokens are adjacent."""

CHUNK = 64
"""Features per chunk: a cache line of 128 bytes in bf16."""

FIRST_FEATURES_ROWS = 256
"""Features per tile of the first launch, which needs no sums over features."""

FIRST_FEATURES_PLANES = 64
"""The same where tokens are adjacent."""

FIRST_TILES_ROWS = 9
"""Programs that share a sample in the first launch, unless there are too few samples: every program
of the second launch adds up what they left."""

FIRST_TILES_PLANES = 7
"""The same where tokens are adjacent."""

WIDE_PLANES = 64
"""Features from which on the first launch leaves max(-q, 0) for the second where tokens are
adjacent: otherwise every thread that holds a part of a token would recompute it."""

LARGEST_SHARE = 512
"""Most tokens whose electrons one program of the second launch lists, where tokens are rows. The
list has 16 bits per token."""

SMALLEST_SHARE = 128
"""Roughly the fewest."""

SMALL_SAMPLE = 1 << 18
"""Largest sample, in bytes, that one program may take whole. It then runs on one multiprocessor,
but reads the sample twice in one launch, the second time from the cache."""

SMALL_BATCH = 1 << 25
"""Largest latent, in bytes, for which it does: up to there host time matters more."""

WIDE_ROWS = 512
"""Features per tile from which on it does whatever the latent's size, where features are adjacent:
sums over that many cross warps."""

NARROW_ROWS = 512
"""Features per tile up to which one warp holds it in the backward pass, where they are adjacent."""

GATHERED = 512
"""Numbers of the pairs' gradient that one program adds up, where several programs left parts."""


class Latent(NamedTuple):
    """What the rules look at.

    Attributes:
        samples: M.
        tokens: N.
        features: h.
        itemsize: bytes per number.
        rows: whether features are adjacent; otherwise tokens are.
        align: numbers that can be read at once, as in `Geometry`.
    """

    samples: int
    tokens: int
    features: int
    itemsize: int
    rows: bool
    align: int

    @property
    def ragged(self) -> bool:
        """Whether planes are unaligned, so that a thread reads one or two numbers at a time."""
        return not self.rows and self.align < 4


class Blocks(NamedTuple):
    """One program's share of a sample.

    Attributes:
        tokens: per tile.
        features: per tile.
        steps: tiles along the tokens; the most there can be, for a program that lists electrons.
        kept: features left when each thread has summed its own.
        warps: per program.
        stages: tiles in flight in the loop over steps; 1 loads none ahead.
    """

    tokens: int
    features: int
    steps: int
    kept: int
    warps: int
    stages: int


def sample_blocks(latent: Latent) -> Blocks | None:
    """The whole forward pass of a small sample in one program; None for larger ones."""
    samples, tokens, features, itemsize, rows, _ = latent
    block_features = power_of_two(features)
    size = tokens * features * itemsize
    if size > SMALL_SAMPLE or block_features > (WIDEST_ROWS if rows else WIDEST_PLANES):
        return None
    if samples * size > SMALL_BATCH and not (rows and block_features >= WIDE_ROWS):
        return None
    block_tokens = _tokens((4 if latent.ragged else 8) * WARP_TILE, tokens, block_features)
    steps = ceil_div(tokens, block_tokens)
    thread = 16 if latent.ragged else 32 if rows and block_features >= 256 else 64
    return _blocks(latent, block_tokens, block_features, thread, steps)


def nucleus_blocks(latent: Latent) -> Blocks:
    """The first launch of the forward pass."""
    samples, tokens, features, _, rows, _ = latent
    if rows:
        block_features = min(power_of_two(features), FIRST_FEATURES_ROWS)
        block_tokens = _tokens(2 * WARP_TILE, tokens, block_features)
    else:
        block_features = min(power_of_two(features), FIRST_FEATURES_PLANES)
        block_tokens = _plane_tokens(latent, block_features)
    made = _blocks(latent, block_tokens, block_features)
    made = made._replace(warps=min(4, made.warps))
    few = FIRST_TILES_ROWS if rows else FIRST_TILES_PLANES
    wave = WAVE if rows else 4 * WAVE // made.warps
    tiles = max(few, ceil_div(wave, samples * ceil_div(features, block_features)))
    return made._replace(steps=ceil_div(ceil_div(tokens, block_tokens), tiles))


def radius_blocks(latent: Latent) -> Blocks:
    """The second launch of the forward pass."""
    samples, tokens, features, _, rows, _ = latent
    block_features = power_of_two(features)
    if rows and block_features <= WIDEST_ROWS:
        block_tokens = _tokens(WARP_TILE, tokens, block_features)
        share = power_of_two(ceil_div(tokens, electron_programs(samples, tokens)))
        return _blocks(
            latent, block_tokens, block_features, steps=ceil_div(share, block_tokens), stages=3
        )
    if rows:
        return _very_wide_rows(latent)
    widest = WIDEST_PLANES
    if features > widest and ceil_div(features, widest // 2) % 2:
        widest //= 2  # the last chunk would be at most half full
    made = _planes(latent, widest)
    if made.features < features:
        return made
    most = samples * ceil_div(tokens, made.tokens) // WAVE
    tiles = power_of_two(ceil_div(tokens, made.tokens))
    return made._replace(steps=min(4, tiles, power_of_two(max(1, most))))


def electron_programs(samples: int, tokens: int) -> int:
    """Programs of the second launch that share a sample's electrons, where tokens are rows."""
    least, most = ceil_div(tokens, LARGEST_SHARE), ceil_div(tokens, SMALLEST_SHARE)
    return max(least, min(most, 2 * WAVE // samples))


def keeps_lightness(latent: Latent) -> bool:
    """Whether the first launch leaves max(-q, 0) for the second, 4 bytes per token."""
    if latent.rows:
        return power_of_two(latent.features) <= WIDEST_ROWS
    return latent.features >= WIDE_PLANES


def backward_blocks(latent: Latent) -> Blocks:
    """The backward pass."""
    samples, tokens, features, _, rows, _ = latent
    block_features = power_of_two(features)
    if rows and block_features <= WIDEST_ROWS:
        narrow = block_features <= NARROW_ROWS
        block_tokens = _tokens(WARP_TILE // 2 if narrow else WARP_TILE, tokens, block_features)
        most = power_of_two(ceil_div(tokens, block_tokens))
        steps = min(4 if narrow else 8, power_of_two(max(1, samples * most // WAVE)), most)
        return _blocks(latent, block_tokens, block_features, 16, steps, min(3, steps))
    if rows:
        return _very_wide_rows(latent)
    return _planes(latent, WIDEST_PLANES // (4 if latent.ragged else 2))


def _very_wide_rows(latent: Latent) -> Blocks:
    return _blocks(latent, _tokens(4 * WARP_TILE, latent.tokens, CHUNK), CHUNK)


def _planes(latent: Latent, widest: int) -> Blocks:
    """One tile; the features of a wider latent come in chunks and are read twice."""
    block_features = min(power_of_two(latent.features), widest)
    block_tokens = _plane_tokens(latent, block_features)
    return _blocks(latent, block_tokens, block_features, 32 if latent.ragged else 64)


def _plane_tokens(latent: Latent, block_features: int) -> int:
    """One cache line in bf16, two where there are few features, half of one where there are 256.

    At most half where planes are ragged: every number then takes its own address and mask.
    """
    most = 32 if latent.ragged else 128 if block_features < 64 else 64
    elements = (4 if latent.ragged else 8) * WARP_TILE
    return min(most, _tokens(elements, latent.tokens, block_features))


class PairBlocks(NamedTuple):
    """One program's share of the pairs.

    Attributes:
        own: samples whose rows it sums.
        others: samples that it compares them with at a time.
        chunk: features at a time.
        warps: per program.
        splits: most programs that share the others.
    """

    own: int
    others: int
    chunk: int
    warps: int
    splits: int = 1


def pair_blocks(samples: int, width: int, owned: int) -> PairBlocks:
    """The pairs of `owned` nuclei of `width` features with all `samples`."""
    if samples > 256:
        own, others, chunk = 16, 64, 16
        splits = 8 if samples < 2048 else 4 if samples < 4096 else 1
    elif samples > 128:
        own, others, chunk, splits = 4, 64, 64, 4
    elif samples > 64:
        own, others, chunk, splits = 4, 32, 64, 4
    else:
        own, others, chunk, splits = 1, 32, 256, 2
    if owned < samples:  # few rows against many: more programs share the others
        splits = max(splits, WAVE // 2 // ceil_div(owned, own))
    return PairBlocks(own, others, min(chunk, power_of_two(width)), 4, splits)


def ceil_div(number: int, step: int) -> int:
    """How many steps cover a number."""
    return -(-number // step)


def power_of_two(number: int) -> int:
    """The next power of two."""
    return 1 << (number - 1).bit_length()


def _tokens(elements: int, tokens: int, block_features: int) -> int:
    most = max(1, min(MOST_TOKENS, elements // block_features))
    return min(most, power_of_two(tokens))


def _blocks(
    latent: Latent, tokens: int, features: int, thread: int = 32, steps: int = 1, stages: int = 1
) -> Blocks:
    """A tile of which each thread holds `thread` numbers."""
    warps = max(1, min(8, tokens * features // (32 * thread)))
    if latent.rows:
        kept = features // (16 // latent.itemsize)
    else:
        kept = 32 * warps * latent.align // tokens
    return Blocks(tokens, features, steps, max(1, min(kept, features)), warps, stages)
