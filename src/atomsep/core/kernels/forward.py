"""Atoms: charges, sums, nucleus, radius and mean direction, in two readings of the tokens.

The first reads every token once: charges, their sums, and the mass-weighted positions. The second
reads the tokens again, now that the nucleus is known, for

    r = (1/N) sum g |p - mu|        s = (1/N) sum g u        (g = max(-q, 0))

where s saves the backward pass a pass of its own. The output is N charges and h + 5 numbers per
sample. Where a copy of the latent is needed, the first reading writes it.

**Small samples** take one program each, in one launch: the second reading hits the cache.

**Large samples** take one launch per reading. The first goes from the end of the batch to its
beginning, the second the other way round, so that the first finds in the cache what the layer
wrote last, and the second what the first read last. A sample is cut into tiles of tokens, and a
program leaves the sums of its tile in scratch memory. The second launch adds up those of the first
before it starts, and the last of a sample's programs to arrive adds up those of the second, always
in the same order, so that no sum depends on which program comes last. No program waits for
another. Device memory is the limit.

Where tokens are rows, the second reading covers only electrons: a program lists those in its share
of the tokens, using the g that the first reading left, and works through the list. Where they are
planes of many features, it reads g along with its tile.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from atomsep.core.kernels import blocks as rules
from atomsep.core.kernels.blocks import Blocks, Latent, ceil_div
from atomsep.core.kernels.forward_kernels import atoms_kernel, nucleus_kernel, radius_kernel
from atomsep.core.kernels.launch import Launch, on
from atomsep.core.kernels.strides import empty_like, geometry, score_at, token_view
from atomsep.core.statistics import FIELDS

if TYPE_CHECKING:
    from atomsep.core.statistics import Reading, Tokens

TALLIES = 4
"""Numbers that a tile of the first launch leaves next to its sums over features."""


def read_atoms(tokens: Tokens, copy: bool = False) -> tuple[Tensor | None, Tensor, Tensor, Tensor]:
    """See `atomsep.core.backend.Backend`."""
    source, scores, mask, count, reading = tokens
    layout, device = reading.layout, source.device
    copied = target = None
    if copy:
        copied = target = empty_like(source, layout)
        if copied.stride() != source.stride():
            copied.copy_(source)
            target = None
        elif layout.skip:
            layout.front(copied).copy_(layout.front(source))
            target = layout.tokens(copied)
    first = layout.tokens(source) if layout.skip else source
    scores = None if scores is None else scores.contiguous()
    mask = None if mask is None else mask.contiguous()
    plan = _plan(
        *(source.shape, source.stride(), source.dtype, device, reading),
        *(None if scores is None else scores.dtype, mask is None, target is None, count.dtype),
    )
    charge = torch.empty(plan.charge, dtype=source.dtype, device=device)
    table = torch.empty(plan.table, dtype=torch.float32, device=device)
    mean_direction = torch.empty(plan.mean_direction, dtype=torch.float32, device=device)
    with on(device):
        if plan.whole is not None:
            plan.whole((first, scores, mask, target, count, charge, table, mean_direction))
        else:
            arrivals = torch.empty(plan.charge[0], dtype=torch.int32, device=device)
            scratch = torch.empty(plan.scratch, dtype=torch.float32, device=device)
            lightness = order = None
            if plan.lightness:
                lightness = torch.empty(plan.charge, dtype=torch.float32, device=device)
            if plan.lists:
                order = torch.empty(plan.charge, dtype=torch.int16, device=device)
            assert plan.nucleus is not None
            assert plan.radius is not None
            plan.nucleus((first, scores, mask, target, charge, lightness, scratch, arrivals))
            known = first, scores, mask, lightness, order, count
            plan.radius((*known, scratch, arrivals, table, mean_direction))
    return copied, charge, table, mean_direction


class _Plan(NamedTuple):
    """The launches for latents of one kind, and the shapes of the outputs."""

    charge: tuple[int, int]
    table: tuple[int, int]
    mean_direction: tuple[int, int]
    scratch: int
    lightness: bool
    lists: bool
    whole: Launch | None = None
    nucleus: Launch | None = None
    radius: Launch | None = None


@lru_cache(maxsize=1024)
def _plan(
    shape: tuple[int, ...],
    stride: tuple[int, ...],
    dtype: torch.dtype,
    device: torch.device,
    reading: Reading,
    *kinds: object,
) -> _Plan:
    """The plan for latents of this kind; `kinds` are the types of the other tensors."""
    layout, feature, norm = reading
    view = token_view(shape, stride, layout)
    assert view is not None
    samples, length, features, *_ = view
    where = geometry(view)
    width = features if feature is None else features - 1
    numbers = (where.tokens, where.features, where.sample, where.wide)
    out = (samples, length), (samples, FIELDS + width), (samples, width)
    read = {"ROWS": where.rows, "ALIGN": where.align, "FEATURE": score_at(view, feature)}

    latent = Latent(samples, length, features, dtype.itemsize, where.rows, where.align)
    whole = rules.sample_blocks(latent)
    if whole is not None:
        launch = Launch(
            *(atoms_kernel, device, (samples,), (*numbers, whole.steps), whole.warps),
            {**read, "FULL": features == whole.features, "NORM": norm, "TOKENS": whole.tokens,
             "FEATURES": whole.features},
        )  # fmt: skip
        return _Plan(*out, 0, False, False, whole=launch)

    first, second = rules.nucleus_blocks(latent), rules.radius_blocks(latent)
    covers = second.features >= features
    lightness = rules.keeps_lightness(latent)
    lists = lightness and where.rows
    tiles = _tiles(length, first)
    second_tiles = rules.electron_programs(samples, length) if lists else _tiles(length, second)
    span = ceil_div(length, second_tiles)
    assert span <= second.tokens * second.steps
    chunks = ceil_div(features, first.features)
    nucleus = Launch(
        *(nucleus_kernel, device, (samples * tiles * chunks,)),
        *((*numbers, tiles, chunks, first.steps), first.warps),
        {
            **read,
            "FULL": features % first.features == 0,
            "TOKENS": first.tokens,
            "FEATURES": first.features,
        },
    )
    radius = Launch(
        *(radius_kernel, device, (samples * second_tiles,)),
        *((*numbers, samples, tiles, second_tiles, span), second.warps),
        {**read, "FULL": features % second.features == 0, "NORM": norm, "WHOLE": covers,
         "TOKENS": second.tokens, "FEATURES": second.features, "STEPS": second.steps,
         "KEPT": second.kept, "STAGES": second.stages},
    )  # fmt: skip
    scratch = samples * (tiles + second_tiles) * (features + TALLIES)
    return _Plan(*out, scratch, lightness, lists, nucleus=nucleus, radius=radius)


def _tiles(length: int, blocks: Blocks) -> int:
    return ceil_div(length, blocks.tokens * blocks.steps)
