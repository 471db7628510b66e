"""The backward pass of `tiled.py`, in Gluon: what it reads it reads once.

A program takes a tile of the latent and of the arriving gradient into shared memory, adds to the
latter what `backward.py` says, and the copy engine takes it from there. Programs share a
multiprocessor, mostly three: one computes while others load. Bound by device memory.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma

from atomsep.kernels.read import (
    charge_gradient,
    charge_of,
    read_gradients,
    read_vector,
    spread_and_pull,
)
from atomsep.kernels.tiled_read import (
    all_arrive,
    empty_slot,
    fill_slot,
    over_features,
    positions,
    scores_of,
)


@gluon.jit
def read_by_feature(at, column, FEATURE: gl.constexpr):
    """A vector of h numbers, 0 for the score."""
    return gl.load(at + column, mask=column != FEATURE, other=0.0)


@gluon.jit(do_not_specialize=["tiles"])
def tiled_backward_kernel(
    latent, arriving, written, stretches, shifts, count, table, mean_direction, grad_table, scale,
    tiles,
    FEATURE: gl.constexpr, FEATURES: gl.constexpr, TOKENS: gl.constexpr, WARPS: gl.constexpr,
):  # fmt: skip
    """One program: one tile."""
    POSITIONS: gl.constexpr = positions(TOKENS, WARPS)
    OF_TOKENS: gl.constexpr = gl.SliceLayout(0, POSITIONS)
    LINE: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    LINES: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
    source_tile = gl.allocate_shared_memory(latent.dtype, [FEATURES, TOKENS], latent.layout)
    grad_tile = gl.allocate_shared_memory(latent.dtype, [FEATURES, TOKENS], latent.layout)
    sums = gl.allocate_shared_memory(gl.float32, [WARPS, TOKENS], LINES)
    masses = gl.allocate_shared_memory(gl.float32, [TOKENS], LINE)
    pulls = gl.allocate_shared_memory(gl.float32, [TOKENS], LINE)
    grad_scores = gl.allocate_shared_memory(gl.float32, [TOKENS], LINE)
    source_here = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    grad_here = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(source_here, count=1)
    mbarrier.init(grad_here, count=1)
    place = gl.num_programs(0) - 1 - gl.program_id(0)  # what arrives was written last at the end
    sample = place // tiles
    corner = [sample * FEATURES, place % tiles * TOKENS]
    mbarrier.expect(source_here, 2 * TOKENS * FEATURES)
    fill_slot(latent, corner, source_here, source_tile)
    mbarrier.expect(grad_here, 2 * TOKENS * FEATURES)
    fill_slot(arriving, corner, grad_here, grad_tile)

    # while they come
    at = sample.to(gl.int64) * (FEATURES + 4)
    share = 1 / gl.load(count + sample)
    factor = 1.0
    if scale is not None:
        factor = gl.load(scale)
    g_protons, g_electrons, g_sum, g_square, g_radius = read_gradients(grad_table, at, factor)
    column = gl.arange(0, FEATURES, layout=gl.SliceLayout(1, POSITIONS))
    mu = read_vector(table + at + 5, column, FEATURES, FEATURE)
    s = read_vector(
        mean_direction + sample.to(gl.int64) * (FEATURES - 1), column, FEATURES, FEATURE
    )
    v = read_vector(grad_table + at + 5, column, FEATURES, FEATURE) * factor - g_radius * s
    of_nucleus = gl.sum(mu * v, axis=0)
    stretch = gl.where(column == FEATURE, 0.0, 1.0)
    if stretches is not None:  # a batch norm made the latent of what is read here
        stretch = read_by_feature(stretches, column, FEATURE)
        mu -= read_by_feature(shifts, column, FEATURE)

    mbarrier.wait(source_here, 0)
    score = scores_of(source_tile, FEATURE, WARPS)
    if stretches is not None:
        score = score * gl.load(stretches + FEATURE) + gl.load(shifts + FEATURE)
    q, slope = charge_of(score)
    offset = source_tile.load(POSITIONS).to(gl.float32) * stretch[:, None] - mu[:, None]
    square = over_features(offset * offset, sums, WARPS)
    along = over_features(offset * v[:, None], sums, WARPS) + of_nucleus
    lightness = gl.maximum(-q, 0.0)
    spread, pull = spread_and_pull(lightness, square, 2)
    grad_charge = charge_gradient(
        q, along, spread, share, g_protons, g_electrons, g_sum, g_square, g_radius
    )
    masses.store((1 - lightness) * share)
    pulls.store(pull * (g_radius * share))
    grad_scores.store(grad_charge * slope)

    mass, pull = masses.load(OF_TOKENS)[None, :], pulls.load(OF_TOKENS)[None, :]
    offset = source_tile.load(POSITIONS).to(gl.float32) * stretch[:, None] - mu[:, None]
    grad = mass * v[:, None] + pull * offset
    grad_score = grad_scores.load(OF_TOKENS)[None, :]
    grad = gl.where((column == FEATURE)[:, None], grad_score, grad)
    mbarrier.wait(grad_here, 0)
    grad += grad_tile.load(POSITIONS).to(gl.float32)
    grad_tile.store(grad.to(latent.dtype))
    fence_async_shared()
    all_arrive()
    empty_slot(written, corner, grad_tile)
    tma.store_wait(0)
