"""The forward pass of `tiled.py`, in Gluon: the latent is read once.

The second look at a token needs the nucleus, and so the first look at all other tokens of its
sample. Here both find the token in the shared memory of a multiprocessor, where it was put once.
A multiprocessor runs one program, which takes a tile, and then the one that is as many further as
there are programs. It holds several in a ring of slots, and looks at one for the first time while
others wait for their nucleus. Its warps share the work:

- `load_tiles`: the copy engine fills the next slot that is free;
- `look_first`: charges and their sums, and the mass-weighted positions, which it leaves in device
  memory for other programs;
- `add_nucleus`: adds up what the programs of a sample left, for a few features: a part of the
  nucleus;
- `fetch_nucleus`: waits until all parts are there and brings them to shared memory; and has the
  copy engine write the copy, where one is due;
- `look_again`: the sums of g |p - mu| and g u, and the slot is free.

**Programs wait for each other**, so all must run at once: the launch is a cooperative one, of a
program a multiprocessor. A sample lies within two rounds of them, and a ring holds more, so nobody
waits for a tile that cannot be loaded.

**What is waited for is the number itself.** Memory is filled with a pattern that no instruction
returns, and a reader asks again until it sees something else. There are no flags, and none of the
fences that they need, which take several times as long as all the rest.

**Sums over tokens are matrix products.** The weight of a token is cut into two parts of 8 bits,
whose products with bf16 are exact: an error of 2^-16 of a weight, far below that of the positions.
|p - mu| comes from exact differences, as everywhere.

Bound by the way from one multiprocessor to another: by how long a tile must be held.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import mma_v2
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma

from atomsep.kernels.looks import column_sums
from atomsep.kernels.read import charge_of, position_of, spread_and_pull
from atomsep.kernels.tiled_read import (
    all_arrive,
    empty_slot,
    fill_slot,
    over_features,
    positions,
    scores_of,
)

UNWRITTEN = -1
"""The pattern of what was not written yet, as an integer: a NaN that no instruction returns."""


@gluon.constexpr_function
def _ask(words):
    """Instructions that read some words, and again until all were written."""
    out = [f"${i}" for i in range(words)]
    reads = [f"ld.relaxed.gpu.global.b32 {o}, [${words + i}];" for i, o in enumerate(out)]
    checks = [f"setp.eq.or.s32 p, {o}, {UNWRITTEN}, p;" for o in out[1:]]
    first = f"setp.eq.s32 p, {out[0]}, {UNWRITTEN};"
    return " ".join(["{ .reg .pred p; AGAIN:", *reads, first, *checks, "@p bra AGAIN; }"])


@gluon.constexpr_function
def _asked(words):
    return ",".join(["=&r"] * words + ["l"] * words)


@gluon.jit
def wait_for(at, EACH: gl.constexpr):
    """The numbers at these addresses, `EACH` a thread, once they were written."""
    words = gl.inline_asm_elementwise(
        _ask(EACH), _asked(EACH), [at.to(gl.int64)], gl.int32, is_pure=False, pack=EACH
    )
    return words.to(gl.float32, bitcast=True)


@gluon.jit
def publish(at, number, when):
    """Store numbers that other programs wait for."""
    gl.inline_asm_elementwise(
        "{ .reg .pred p; setp.ne.s32 p, $3, 0;"
        " @p st.relaxed.gpu.global.b32 [$1], $2; mov.b32 $0, 0; }",
        "=r,l,r,r",
        [at.to(gl.int64), number.to(gl.int32, bitcast=True), when.to(gl.int32)],
        gl.int32,
        is_pure=False,
        pack=1,
    )


@gluon.jit
def place_of(tiles, total):
    """Sample and tile where a program begins, at the batch's end, and how far its steps go."""
    program, programs = gl.program_id(0), gl.num_programs(0)
    place = total - 1 - program
    rounds = (total - program + programs - 1) // programs
    return place // tiles, place % tiles, programs // tiles, programs % tiles, rounds


@gluon.jit
def step(sample, tile, along_samples, along_tiles, tiles):
    """Sample and tile of the next round."""
    sample -= along_samples
    tile -= along_tiles
    if tile < 0:
        tile += tiles
        sample -= 1
    return sample, tile


@gluon.jit
def weighted_sums(slot, weights, WARPS: gl.constexpr):
    """Sums over tokens of weights times positions, `(8, features)` with all rows the same.

    Half of the product's 16 rows take a weight's upper 8 bits, half what is left of it.
    """
    FEATURES: gl.constexpr = slot.shape[0]
    SUMS: gl.constexpr = gl.NVMMADistributedLayout(
        version=[2, 0], warps_per_cta=[1, WARPS], instr_shape=[16, 8]
    )
    LEFT: gl.constexpr = gl.DotOperandLayout(parent=SUMS, operand_index=0, k_width=2)
    RIGHT: gl.constexpr = gl.DotOperandLayout(parent=SUMS, operand_index=1, k_width=2)
    weight = weights.load(gl.SliceLayout(0, LEFT))
    upper = (weight.to(gl.int32, bitcast=True) & -65536).to(gl.float32, bitcast=True)
    is_upper = gl.arange(0, 16, layout=gl.SliceLayout(1, LEFT))[:, None] < 8
    left = gl.where(is_upper, upper[None, :], (weight - upper)[None, :]).to(gl.bfloat16)
    right = slot.permute([1, 0]).load(RIGHT)
    nothing = gl.zeros([16, FEATURES], gl.float32, layout=SUMS)
    return gl.sum(mma_v2(left, right, nothing).reshape([2, 8, FEATURES]), axis=0)


@gluon.jit
def places_of(row, sums):
    """Where sums over tokens belong, and which of their rows to store."""
    LAYOUT: gl.constexpr = sums.type.layout
    column = gl.arange(0, sums.shape[1], layout=gl.SliceLayout(0, LAYOUT))[None, :]
    line = gl.arange(0, 8, layout=gl.SliceLayout(1, LAYOUT))[:, None]
    return row + (column + 0 * line), (line + 0 * column) == 0


@gluon.jit
def load_tiles(
    latent, held, full, free, tiles, total,
    SLOTS: gl.constexpr, TOKENS: gl.constexpr, FEATURES: gl.constexpr,
):  # fmt: skip
    """Tiles into slots."""
    sample, tile, along_samples, along_tiles, rounds = place_of(tiles, total)
    for k in range(rounds):
        slot = k % SLOTS
        mbarrier.wait(free.index(slot), ((k // SLOTS) & 1) ^ 1, pred=k >= SLOTS)
        mbarrier.expect(full.index(slot), 2 * TOKENS * FEATURES)
        fill_slot(latent, [sample * FEATURES, tile * TOKENS], full.index(slot), held.index(slot))
        sample, tile = step(sample, tile, along_samples, along_tiles, tiles)


@gluon.jit
def look_first(
    held, masses, full, charge, numbers, tokens, tiles, total,
    FEATURE: gl.constexpr, SLOTS: gl.constexpr, TOKENS: gl.constexpr,
    FEATURES: gl.constexpr, WARPS: gl.constexpr, TALLIES: gl.constexpr,
):  # fmt: skip
    """The first look: what a sample's programs need of each other, and charges."""
    sample, tile, along_samples, along_tiles, rounds = place_of(tiles, total)
    for k in range(rounds):
        slot = held.index(k % SLOTS)
        mbarrier.wait(full.index(k % SLOTS), (k // SLOTS) & 1)
        q, _ = charge_of(scores_of(slot, FEATURE, WARPS))
        g = gl.maximum(-q, 0.0)
        masses.store(1 - g)
        row = numbers + (sample.to(gl.int64) * tiles + tile) * (FEATURES + TALLIES)
        sums = weighted_sums(slot, masses, WARPS)
        at, once = places_of(row, sums)
        publish(at, sums, once)
        # a token beyond the last is zero, and so is its charge
        protons = gl.sum(gl.maximum(q, 0.0), axis=0)
        electrons = gl.sum(g, axis=0)
        gl.store(row + FEATURES, protons)
        gl.store(row + FEATURES + 1, electrons)
        gl.store(row + FEATURES + 2, gl.sum(q, axis=0))
        gl.store(row + FEATURES + 3, gl.sum(q * q, axis=0))
        token = tile * TOKENS + gl.arange(0, TOKENS, layout=q.type.layout)
        place = charge + sample.to(gl.int64) * tokens + token
        gl.store(place, q.to(charge.dtype.element_ty), mask=token < tokens)
        sample, tile = step(sample, tile, along_samples, along_tiles, tiles)


@gluon.jit
def add_nucleus(
    count, numbers, tiles, total,
    FEATURE: gl.constexpr, FEATURES: gl.constexpr, TALLIES: gl.constexpr,
    TILES: gl.constexpr, SLICE: gl.constexpr,
):  # fmt: skip
    """A few features of the nucleus of every sample that this program has a tile of."""
    PARTS: gl.constexpr = gl.BlockedLayout([1, 1], [32 // SLICE, SLICE], [1, 1], [1, 0])
    row = gl.arange(0, TILES, layout=gl.SliceLayout(1, PARTS))[:, None]
    part = gl.arange(0, SLICE, layout=gl.SliceLayout(0, PARTS))
    pitch = FEATURES + TALLIES
    nuclei = numbers + total.to(gl.int64) * pitch
    sample, tile, along_samples, along_tiles, rounds = place_of(tiles, total)
    for _ in range(rounds):
        if tile * SLICE < FEATURES:
            column = tile * SLICE + part
            per_token = 1 / gl.load(count + sample)
            rows = numbers + sample.to(gl.int64) * tiles * pitch
            at = rows + gl.where(row < tiles, row * pitch, 0) + column[None, :]
            parts = gl.where(row < tiles, wait_for(at, TILES * SLICE // 32), 0.0)
            mu = gl.where(column == FEATURE, 0.0, gl.sum(parts, axis=0) * per_token)
            publish(nuclei + sample.to(gl.int64) * FEATURES + column, mu, column >= 0)
        sample, tile = step(sample, tile, along_samples, along_tiles, tiles)


@gluon.jit
def fetch_nucleus(
    copy, held, nucleus, full, known, taken, numbers, tiles, total,
    SLOTS: gl.constexpr, TOKENS: gl.constexpr, FEATURES: gl.constexpr, TALLIES: gl.constexpr,
):  # fmt: skip
    """Nuclei into shared memory, one after the other; and tiles into the copy."""
    column = gl.arange(0, FEATURES, layout=gl.BlockedLayout([1], [32], [1], [0]))
    nuclei = numbers + total.to(gl.int64) * (FEATURES + TALLIES)
    sample, tile, along_samples, along_tiles, rounds = place_of(tiles, total)
    for k in range(rounds):
        # not before its tile is here, lest it asks for long
        mbarrier.wait(full.index(k % SLOTS), (k // SLOTS) & 1)
        if copy is not None:
            empty_slot(copy, [sample * FEATURES, tile * TOKENS], held.index(k % SLOTS))
        at = nuclei + sample.to(gl.int64) * FEATURES + column
        mu = wait_for(at, FEATURES // 32)
        if copy is not None:
            tma.store_wait(0)  # else the slot might be filled again before it is read
        mbarrier.wait(taken.index(0), (k & 1) ^ 1, pred=k > 0)
        nucleus.store(mu)
        all_arrive()
        mbarrier.arrive(known.index(0), count=1)
        sample, tile = step(sample, tile, along_samples, along_tiles, tiles)


@gluon.jit
def look_again(
    held, nucleus, squares, pulls, full, known, taken, free, numbers, tiles, total,
    FEATURE: gl.constexpr, SLOTS: gl.constexpr, TOKENS: gl.constexpr,
    FEATURES: gl.constexpr, WARPS: gl.constexpr, TALLIES: gl.constexpr,
):  # fmt: skip
    """The second look: what is left of a tile."""
    POSITIONS: gl.constexpr = positions(TOKENS, WARPS)
    column = gl.arange(0, FEATURES, layout=gl.SliceLayout(1, POSITIONS))
    sample, tile, along_samples, along_tiles, rounds = place_of(tiles, total)
    for k in range(rounds):
        slot = held.index(k % SLOTS)
        row = numbers + (sample.to(gl.int64) * tiles + tile) * (FEATURES + TALLIES)
        mbarrier.wait(full.index(k % SLOTS), (k // SLOTS) & 1)
        mbarrier.wait(known.index(0), k & 1)
        mu = nucleus.load(gl.SliceLayout(1, POSITIONS))
        all_arrive()
        mbarrier.arrive(taken.index(0), count=1)
        offset = slot.load(POSITIONS).to(gl.float32) - mu[:, None]
        offset = gl.where((column != FEATURE)[:, None], offset, 0.0)
        square = over_features(offset * offset, squares, WARPS)
        q, _ = charge_of(scores_of(slot, FEATURE, WARPS))
        g = gl.maximum(-q, 0.0)
        spread, pull = spread_and_pull(g, square, 2)
        pulls.store(pull)
        sums = weighted_sums(slot, pulls, WARPS)
        all_arrive()
        # `look_first` is done with the slot too: the nucleus is made of what it left
        mbarrier.arrive(free.index(k % SLOTS), count=1)
        at, once = places_of(row, sums)
        gl.store(at, sums, mask=once)
        gl.store(row + FEATURES + 4, gl.sum(g * spread, axis=0))
        gl.store(row + FEATURES + 5, gl.sum(pull, axis=0))
        sample, tile = step(sample, tile, along_samples, along_tiles, tiles)


@gluon.jit(do_not_specialize=["tokens", "tiles", "total"])
def tiled_forward_kernel(
    latent, copy, charge, count, numbers, tokens, tiles, total,
    FEATURE: gl.constexpr, FEATURES: gl.constexpr, TOKENS: gl.constexpr,
    SLOTS: gl.constexpr, WARPS: gl.constexpr, TALLIES: gl.constexpr,
    TILES: gl.constexpr, SLICE: gl.constexpr,
):  # fmt: skip
    """One program a multiprocessor; what its warps do is above."""
    LINE: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    LINES: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
    BARRIER: gl.constexpr = mbarrier.MBarrierLayout()
    held = gl.allocate_shared_memory(latent.dtype, [SLOTS, FEATURES, TOKENS], latent.layout)
    nucleus = gl.allocate_shared_memory(gl.float32, [FEATURES], LINE)
    masses = gl.allocate_shared_memory(gl.float32, [TOKENS], LINE)
    squares = gl.allocate_shared_memory(gl.float32, [WARPS, TOKENS], LINES)
    pulls = gl.allocate_shared_memory(gl.float32, [TOKENS], LINE)
    full = gl.allocate_shared_memory(gl.int64, [SLOTS, 1], BARRIER)
    free = gl.allocate_shared_memory(gl.int64, [SLOTS, 1], BARRIER)
    known = gl.allocate_shared_memory(gl.int64, [1, 1], BARRIER)
    taken = gl.allocate_shared_memory(gl.int64, [1, 1], BARRIER)
    for slot in gl.static_range(SLOTS):
        mbarrier.init(full.index(slot), count=1)
        mbarrier.init(free.index(slot), count=1)
    mbarrier.init(known.index(0), count=1)
    mbarrier.init(taken.index(0), count=1)
    tokens *= 8
    gl.warp_specialize(
        [
            (look_first, (
                held, masses, full, charge, numbers, tokens, tiles, total,
                FEATURE, SLOTS, TOKENS, FEATURES, WARPS, TALLIES,
            )),
            (look_again, (
                held, nucleus, squares, pulls, full, known, taken, free, numbers, tiles,
                total, FEATURE, SLOTS, TOKENS, FEATURES, WARPS, TALLIES,
            )),
            (add_nucleus, (
                count, numbers, tiles, total, FEATURE, FEATURES, TALLIES, TILES, SLICE,
            )),
            (fetch_nucleus, (
                copy, held, nucleus, full, known, taken, numbers, tiles, total,
                SLOTS, TOKENS, FEATURES, TALLIES,
            )),
            (load_tiles, (latent, held, full, free, tiles, total, SLOTS, TOKENS, FEATURES)),
        ],
        [WARPS, 1, 1, 1],
        [128, 80, 80, 80],
    )  # fmt: skip


@triton.jit(do_not_specialize=["tiles"])
def finish_kernel(
    numbers, count, table, mean_direction, tiles,
    FEATURE: tl.constexpr, FEATURES: tl.constexpr, TALLIES: tl.constexpr,
):  # fmt: skip
    """One program: add up what the tiles of a sample left.

    s is the sum of g u = pull (p - mu), of which the tiles left sum pull p and sum pull.
    """
    sample = tl.program_id(0).to(tl.int64)
    pitch: tl.constexpr = FEATURES + TALLIES
    width: tl.constexpr = FEATURES - 1
    rows = numbers + sample * tiles * pitch
    per_token = 1 / tl.load(count + sample)
    index = tl.arange(0, TALLIES)
    tallies = column_sums(rows, FEATURES + index, index < 6, tiles, pitch, 16)
    pull = tl.sum(tl.where(index == 5, tallies, 0.0), axis=0)
    column = tl.arange(0, FEATURES)
    nuclei = numbers + tl.num_programs(0).to(tl.int64) * tiles * pitch
    mu = tl.load(nuclei + sample * FEATURES + column)
    s = (column_sums(rows, column, column < FEATURES, tiles, pitch, 16) - pull * mu) * per_token
    place = position_of(column, FEATURE)
    tl.store(mean_direction + sample * width + place, s, mask=column != FEATURE)
    table += sample * (width + 5)
    tl.store(table + 5 + place, mu, mask=column != FEATURE)
    tl.store(table + index, tl.where(index == 4, tallies * per_token, tallies), mask=index < 5)
