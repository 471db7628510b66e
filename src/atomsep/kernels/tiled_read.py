"""How programs in Gluon read a tile that the copy engine put into shared memory.

Gluon is the layer beneath Triton's language, in which a kernel says what lies in shared memory and
which thread holds what. A tile is `(features, tokens)`, tokens side by side. A thread that works on
positions has 8 tokens of a feature at a time, a warp a line of up to 64. What is due once a token
every warp does for all, and a thread for a few.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import tma
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

if TYPE_CHECKING:
    from torch import Tensor

# What Triton 3.9 calls otherwise than 3.6.
all_arrive = getattr(gl, "barrier", None) or gl.thread_barrier
fill_slot = getattr(tma, "async_load", None) or tma.async_copy_global_to_shared
empty_slot = getattr(tma, "async_store", None) or tma.async_copy_shared_to_global


def swizzle(tokens: int) -> Any:
    """Of a tile in shared memory: so that no two threads of a load meet in a bank."""
    return gl.NVMMASharedLayout(min(128, 2 * tokens), element_bitwidth=16, rank=2)


def describe(latent: Tensor, shape: tuple[int, int], block: tuple[int, int]) -> Any:
    """A contiguous latent, `(samples * features, tokens)`, to the copy engine."""
    return TensorDescriptor(latent, list(shape), [shape[1], 1], list(block), swizzle(block[1]))


@gluon.constexpr_function
def of_a_warp(tokens):
    """Features that a warp has at a time."""
    return 32 // min(8, tokens // 8)


@gluon.constexpr_function
def positions(tokens, warps):
    """Who holds which numbers of a tile."""
    features = of_a_warp(tokens)
    return gl.BlockedLayout([1, 8], [features, 32 // features], [warps, 1], [1, 0])


@gluon.constexpr_function
def lines(tokens, warps):
    """Who holds which numbers of a few lines: every warp all of them."""
    return gl.BlockedLayout([8, tokens // 32], [1, 32], [1, warps], [1, 0])


@gluon.jit
def scores_of(tile, FEATURE: gl.constexpr, WARPS: gl.constexpr):
    """Scores of a tile's tokens, in every warp."""
    LINES: gl.constexpr = lines(tile.shape[1], WARPS)
    eight = tile.slice(FEATURE // 8 * 8, 8, dim=0).load(LINES).to(gl.float32)
    is_score = gl.arange(0, 8, layout=gl.SliceLayout(1, LINES)) == FEATURE % 8
    return gl.sum(gl.where(is_score[:, None], eight, 0.0), axis=0)


@gluon.jit
def over_features(numbers, scratch, WARPS: gl.constexpr):
    """Sums over the features of a tile, in every warp: of a warp's, then of all through scratch."""
    FEATURES: gl.constexpr = numbers.shape[0]
    TOKENS: gl.constexpr = numbers.shape[1]
    GROUP: gl.constexpr = of_a_warp(TOKENS)
    split = numbers.reshape([FEATURES // (GROUP * WARPS), WARPS, GROUP, TOKENS])
    scratch.store(gl.sum(gl.sum(split, axis=0), axis=1))
    LINES: gl.constexpr = gl.BlockedLayout([WARPS, TOKENS // 32], [1, 32], [1, WARPS], [1, 0])
    sums = gl.sum(scratch.load(LINES), axis=0)
    return gl.convert_layout(sums, gl.SliceLayout(0, lines(TOKENS, WARPS)))
