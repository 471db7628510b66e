"""How much one program takes: every size that may be tuned, and the rules that choose it.

Chosen by shape alone, so a shape is compiled once, runs the same way every time and never waits
for a search. `tokens x features` is the tile that a program holds in registers. Tiles as wide as
the latent are read once in each pass; a program then works through `steps` of them along the
tokens. Narrower ones walk over the features instead, one step, and read them again from the cache
where a sum over features must be known first: more threads then share the work that is due once
a token.
"""

from __future__ import annotations

from typing import NamedTuple

FORWARD_TILE = 8192
"""Elements of a forward tile: 32 a thread."""

FORWARD_WIDEST_ROWS = 4096
"""Widest tile where features lie together."""

FORWARD_WIDEST_PLANES = 64
"""Widest tile where tokens do."""

FORWARD_TOKENS = 128
"""Tokens of a forward program, at least: it leaves one float32 a feature behind, 1/64 of bf16."""

LONE_BYTES = 1 << 18
"""Bytes up to which a sample is one program's work, which then waits for no other."""

LONE_STAGES = 3
"""Tiles in flight there: often one program alone keeps a multiprocessor busy."""

FORWARD_STAGES = 1
"""Tiles in flight elsewhere, where programs that share a multiprocessor hide each other's waits."""

LEAD_PROGRAMS = 128
"""Programs between the first look at a tile and the second, at least. More, and the nucleus is
surer to be ready; fewer, and the tile is surer to be in the cache."""

BACKWARD_TILE = 4096
"""Elements of a backward tile: 32 a thread."""

BACKWARD_WIDEST = 128
"""Widest backward tile; beyond, `BACKWARD_CHUNK` features at a time."""

BACKWARD_CHUNK = 64
"""Features of a chunk: a line of 128 bytes in bf16."""

BACKWARD_TOKENS = 64
"""Tokens of a backward program, at least: it reads three float32 a feature first."""

MOST_TOKENS = 1024
"""Tokens of a tile of few features."""

THREAD = 32
"""Elements of a tile a thread."""


class Blocks(NamedTuple):
    """One program's share of a sample.

    Attributes:
        tokens: of a tile.
        features: of a tile.
        steps: tiles along the tokens.
        kept: features left when each thread has summed its own.
        line: tokens at a time where scores alone are read.
        warps: of the program.
        stages: tiles in flight in the forward loops over steps; 1 loads none ahead.
    """

    tokens: int
    features: int
    steps: int
    kept: int
    line: int
    warps: int
    stages: int


def forward_blocks(tokens: int, features: int, itemsize: int, rows: bool) -> Blocks:
    """The forward pass, for one sample of `tokens x features`."""
    widest = FORWARD_WIDEST_ROWS if rows else FORWARD_WIDEST_PLANES
    block_features = min(power_of_two(features), widest)
    block_tokens = _tokens(FORWARD_TILE, tokens, block_features)
    stages = 1
    if block_features < features:
        steps = 1
    elif tokens * features * itemsize <= LONE_BYTES:
        steps = ceil_div(tokens, block_tokens)
        stages = LONE_STAGES if steps > 1 else 1
    else:
        steps = ceil_div(FORWARD_TOKENS, block_tokens)
        stages = FORWARD_STAGES
    return _blocks(block_tokens, block_features, steps, stages, itemsize, rows)


def backward_blocks(tokens: int, features: int, itemsize: int, rows: bool) -> Blocks:
    """The backward pass, for one sample of `tokens x features`."""
    block_features = power_of_two(features)
    if block_features > BACKWARD_WIDEST:
        block_features = BACKWARD_CHUNK
    block_tokens = _tokens(BACKWARD_TILE, tokens, block_features)
    steps = 1 if block_features < features else ceil_div(BACKWARD_TOKENS, block_tokens)
    steps = min(steps, ceil_div(tokens, block_tokens))
    return _blocks(block_tokens, block_features, steps, 1, itemsize, rows)


def lead(samples: int, tiles: int) -> int:
    """Programs between the two looks of the forward pass: whole samples, one at least."""
    return min(samples, ceil_div(LEAD_PROGRAMS, tiles)) * tiles


class PairBlocks(NamedTuple):
    """One program's share of the pairs.

    Attributes:
        own: samples whose rows it sums.
        others: samples it holds against them at a time.
        chunk: features at a time.
        splits: programs that share one block of own samples.
        warps: of the program.
        stages: chunks in flight; 1 loads none ahead.
    """

    own: int
    others: int
    chunk: int
    splits: int
    warps: int
    stages: int


MOST_SPLITS = 16
"""Programs on one block of rows: each leaves a gradient of its own."""

MOST_SHARES = 1 << 22
"""Numbers in all those gradients together, if more than one a row."""

PAIR_PROGRAMS = 512
"""Programs that fill the chip."""


def pair_blocks(samples: int, width: int) -> PairBlocks:
    """All pairs of `samples` nuclei of `width` features."""
    if samples >= 4096:
        own, others, chunk, stages = 64, 32, 8, 1
    elif samples >= 1024:
        own, others, chunk, stages = 32, 32, 16, 3
    else:
        own, others, chunk, stages = 16, 16, 32, 3
    programs = min(MOST_SPLITS, PAIR_PROGRAMS // ceil_div(samples, own))
    shares = MOST_SHARES // (samples * width)
    splits = max(1, min(programs, shares, ceil_div(samples, others)))
    return PairBlocks(own, others, min(chunk, power_of_two(width)), splits, 4, stages)


def ceil_div(number: int, step: int) -> int:
    """Steps that cover a number."""
    return -(-number // step)


def power_of_two(number: int) -> int:
    """The next power of two."""
    return 1 << (number - 1).bit_length()


def _tokens(elements: int, tokens: int, block_features: int) -> int:
    most = max(1, min(MOST_TOKENS, elements // block_features))
    return min(most, power_of_two(tokens))


def _blocks(
    tokens: int, features: int, steps: int, stages: int, itemsize: int, rows: bool
) -> Blocks:
    warps = max(1, min(8, tokens * features // (32 * THREAD)))
    vector = 16 // itemsize  # elements that a thread reads together
    kept = features // vector if rows else 32 * warps * vector // tokens
    kept = max(1, min(kept, features))
    line = min(power_of_two(tokens * steps), 32 * warps)
    return Blocks(tokens, features, steps, kept, line, warps, stages)
