"""Both passes over large contiguous latents in half precision, by tiles that are read once.

Where tokens are planes, a token's features are far apart, and each pass needs sums over all of them
before it can go on: of the latent the general kernels read every number twice in each. Here the
copy engine of the GPU puts tiles of all features of some tokens into shared memory, and both
readings find them there (`tiled_forward.py`, `tiled_backward.py`).

That takes Gluon, the layer beneath Triton's language. It may change from one version to the next,
and Triton's interpreter does not run it; so this is for what it was measured on, and everything
else is for the general kernels.
"""

from __future__ import annotations

import os
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch
import triton
from torch import Tensor

from atomsep.kernels.blocks import ceil_div, power_of_two
from atomsep.kernels.launch import Launch

if TYPE_CHECKING:
    from atomsep.kernels.strides import View
    from atomsep.statistics import Reading

VERSIONS = ((3, 6),)
"""Of Triton: those on which the tests ran on a GPU. Where a kernel whose programs wait for each
other is compiled wrong, it hangs."""

SMALLEST = 1 << 25
"""Bytes of a latent from which on the device's time counts more than the host's."""

TILE = 1 << 14
"""Numbers of a tile: 32 KB."""

FEATURES = (64, 128, 256, 512)
"""Features that a token may have: those for which tiles are measured to be faster."""

SLOTS = {128: 6, 256: 7}
"""Tiles that a multiprocessor holds in the forward pass, by the features that there may be: as many
as its shared memory has room for."""

WARPS = 4
"""Of a program in the backward pass; in the forward pass of the first look, and of the second."""

TALLIES = 8
"""Numbers that a tile of the forward pass leaves beside its sums over features: P, G, sum q and
sum q² of the first look, sum g |p - mu| and sum g / |p - mu| of the second. Two are not used."""

ALLOWED = os.environ.get("ATOMSEP_TILES") != "0" and os.environ.get("TRITON_INTERPRET") != "1"
"""Set the first variable to 0 where a launch that needs the whole GPU at once is not wanted."""


def tiled(
    view: View, dtype: torch.dtype, device: torch.device, reading: Reading, plain: bool
) -> bool:
    """Whether the backward pass over a latent is for these kernels.

    Args:
        view: its tokens.
        dtype: of its numbers.
        device: where it is.
        reading: layout, feature and norm.
        plain: whether there is no mask, and all that is read and written lies as the latent does,
            at addresses that are multiples of 16.
    """
    samples, tokens, features, along_samples, along_tokens, along_features = view
    if not plain or device.type != "cuda" or dtype not in (torch.bfloat16, torch.float16):
        return False
    if reading.feature is None or reading.norm != 2 or reading.layout.skip:
        return False
    contiguous = along_samples == features * tokens and along_features == tokens
    if not contiguous or along_tokens != 1 or features not in FEATURES or tokens % 8:
        return False
    large = 2 * samples * features * tokens >= SMALLEST
    return large and ALLOWED and _version() in VERSIONS and _multiprocessors(device) > 0


def held(
    view: View, dtype: torch.dtype, device: torch.device, reading: Reading, plain: bool
) -> bool:
    """Whether the forward pass is."""
    if dtype != torch.bfloat16 or view.features not in SLOTS:
        return False
    if not tiled(view, dtype, device, reading, plain):
        return False
    tiles = ceil_div(view.tokens, TILE // view.features)
    return 8 < tiles <= min(128, _multiprocessors(device))


def _version() -> tuple[int, ...]:
    return tuple(int(part) for part in triton.__version__.split(".")[:2])


@lru_cache
def _multiprocessors(device: torch.device) -> int:
    """0 where the GPU is not of the kind that this was measured on."""
    properties = torch.cuda.get_device_properties(device)
    hopper = properties.major == 9 and torch.version.hip is None  # some of AMD's are 9.4
    return properties.multi_processor_count if hopper else 0


def nucleus_share(tiles: int) -> tuple[int, int]:
    """A power of two of tiles, and the features of which a program adds up what they left.

    16 numbers a thread of a warp. All programs of a sample together have the whole nucleus.
    """
    most = power_of_two(tiles)
    return most, 16 * 32 // most


class Tiles:
    """How latents of one kind are cut.

    Args:
        view: the tokens.
    """

    def __init__(self, view: View) -> None:
        from atomsep.kernels.tiled_read import describe  # Gluon, where it is used

        self.describe = describe
        samples, tokens, features, *_ = view
        self.shape, self.block = (samples * features, tokens), (features, TILE // features)
        self.tiles = ceil_div(tokens, TILE // features)

    def see(self, tensor: Tensor) -> Any:
        """What the copy engine is told of a tensor of this kind."""
        return self.describe(tensor, self.shape, self.block)


class TiledForward:
    """The launches of the forward pass over latents of one kind.

    Args:
        view: the tokens.
        device: where they are.
        feature: the score's, from 0.
    """

    def __init__(self, view: View, device: torch.device, feature: int) -> None:
        from atomsep.kernels import tiled_forward  # Gluon, where it is used

        samples, tokens, features, *_ = view
        self.cut = Tiles(view)
        tiles, (_, block) = self.cut.tiles, self.cut.block
        most, share = nucleus_share(tiles)
        self.unwritten = tiled_forward.UNWRITTEN
        self.words = samples * (tiles * (features + TALLIES) + features)
        same = {"FEATURE": feature, "FEATURES": features}
        self.looks = Launch(
            *(tiled_forward.tiled_forward_kernel, device, (_multiprocessors(device),)),
            *((tokens // 8, tiles, samples * tiles), WARPS),
            {**same, "TOKENS": block, "SLOTS": SLOTS[features], "WARPS": WARPS,
             "TALLIES": TALLIES, "TILES": most, "SLICE": share},
            launch_cooperative_grid=True,
        )  # fmt: skip
        finish = tiled_forward.finish_kernel
        self.finish = Launch(finish, device, (samples,), (tiles,), 4, {**same, "TALLIES": TALLIES})

    def __call__(
        self,
        source: Tensor,
        copy: Tensor | None,
        count: Tensor,
        charge: Tensor,
        table: Tensor,
        mean_direction: Tensor,
    ) -> None:
        """Writes the copy, the charges, the table and s."""
        words = torch.full((self.words,), self.unwritten, dtype=torch.int32, device=source.device)
        numbers = words.view(torch.float32)
        target = None if copy is None else self.cut.see(copy)
        self.looks((charge, count, numbers), described=(self.cut.see(source), target))
        self.finish((numbers, count, table, mean_direction))


class TiledBackward:
    """The launch of the backward pass over latents of one kind; arguments as `TiledForward`."""

    def __init__(self, view: View, device: torch.device, feature: int) -> None:
        from atomsep.kernels.tiled_backward import tiled_backward_kernel  # Gluon, where it is used

        self.cut = Tiles(view)
        tiles, (features, block) = self.cut.tiles, self.cut.block
        self.launch = Launch(
            *(tiled_backward_kernel, device, (view.samples * tiles,), (tiles,), WARPS),
            {"FEATURE": feature, "FEATURES": features, "TOKENS": block, "WARPS": WARPS},
        )

    def __call__(self, tensors: tuple[Tensor | None, ...]) -> None:
        """Writes the gradient; takes what `backward_kernel` does, in its order."""
        source, _, _, *known, arriving, grad_table, scale, written, _ = tensors
        assert source is not None
        assert arriving is not None
        assert written is not None
        described = self.cut.see(source), self.cut.see(arriving), self.cut.see(written)
        self.launch((*known, grad_table, scale), described=described)
