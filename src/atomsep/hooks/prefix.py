"""Class, distillation and register tokens: how many a model puts in front of an image's tokens."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from typing import Any

from torch import nn

_TOKENS = re.compile(r"((cls|class|dist|distillation|reg|register)_)+(tokens?|embedding)\d*")
"""Names of parameters that hold such tokens: `(C,)`, `(n, C)` or `(1, n, C)`; CoaT numbers them."""


class Prefix:
    """How many tokens around a layer are not part of the image.

    The model's attributes tell how many there may be. Whether the layer's output has them, its
    number of tokens tells: without them it must make the grid of the input image. A patch
    embedding, for instance, returns the grid alone.

    Args:
        model: the model around the layer.
        layer: where the tokens are counted.
    """

    def __init__(self, model: nn.Module, layer: nn.Module) -> None:
        near = list(dict.fromkeys(_near(model, layer)))
        self.counts = sorted({count for module in near for count in _counts(module)} - {0})
        self.patches = {size for module in near for size in _patch_sizes(module)}
        anywhere = {count for module in model.modules() for count in _counts(module)} - {0}
        self.anywhere = self.counts or sorted(anywhere)

    def of(
        self, tokens: int, images: list[tuple[int, ...]], *, other_inputs: bool = False
    ) -> int | None:
        """How many of a layer's tokens come before those of an image; None if nothing fits.

        If the model does not tell the size of its patches, they are taken to be square, so that
        the grid has the proportions of the image.

        Args:
            tokens: the layer's number of tokens.
            images: shapes of the model's inputs, `(M, C, H, W)` or `(M, T, C, H, W)`.
            other_inputs: whether the layer's tokens may be those of a text. Then only tokens near
                the layer count, not those of another part of the model.
        """
        counts = self.counts if other_inputs else self.anywhere
        if not counts:
            return 0
        for grids in self._possible_grids(images):
            for count in (0, *counts):
                if tokens - count in grids:
                    return count
        return None

    def misses(self, tokens: int, images: list[tuple[int, ...]]) -> bool:
        """Whether there is one token more than a grid of the image has, and nothing says why."""
        grids: set[int] = set().union(*self._possible_grids(images))
        return not self.anywhere and tokens not in grids and tokens - 1 in grids

    def _possible_grids(self, images: list[tuple[int, ...]]) -> Iterator[set[int]]:
        """Numbers of tokens that a grid of the image may have, the likely ones first."""
        for image in images:
            squares = [(side, side) for side in range(1, min(image[-2:]) + 1)]
            exact = [(a, b) for a, b in squares if image[-2] % a == image[-1] % b == 0]
            # Later stages join patches, so their sides are multiples of the first ones.
            joined = [(n * a, n * b) for a, b in self.patches for n in range(2, 65)]
            for patches in (self.patches, joined) if self.patches else (exact, squares):
                yield set(_grids(image, patches))


def _grids(image: tuple[int, ...], patches: Iterable[tuple[int, int]]) -> Iterator[int]:
    """Numbers of patches that an image, or a video, may be cut into."""
    height, width = image[-2:]
    frames = image[1:3] if len(image) == 5 else ()
    times = {count // joined for count in frames for joined in range(1, count + 1)} or {1}
    for down, across in patches:
        for whole in (math.floor, math.ceil):
            grid = whole(height / down) * whole(width / across)
            yield from (time * grid for time in times)


def _near(model: nn.Module, layer: nn.Module) -> Iterator[nn.Module]:
    """The modules around the layer, and what each of them holds directly."""
    for module in model.modules():
        if any(part is layer for part in module.modules()):
            yield module
            yield from module.children()


def _counts(module: nn.Module) -> Iterator[int]:
    """Numbers of tokens that a module may put in front."""
    count = getattr(module, "num_prefix_tokens", None)
    if isinstance(count, int):
        yield count
    own = {n: t for n, t in module.named_parameters(recurse=False) if _TOKENS.fullmatch(n)}
    sizes = {name: t.shape[-2] if t.dim() > 1 else 1 for name, t in own.items()}
    yield sum(size for name, size in sizes.items() if not name[-1].isdigit())
    yield from (size for name, size in sizes.items() if name[-1].isdigit())  # one per stage
    registers = getattr(getattr(module, "config", None), "num_register_tokens", None)
    if isinstance(registers, int):
        yield from (registers, registers + 1)


def _patch_sizes(module: nn.Module) -> Iterator[tuple[int, int]]:
    """Sizes of the patches that a module cuts images into."""
    for holder in (module, getattr(module, "config", None)):
        size: Any = getattr(holder, "patch_size", None)
        if isinstance(size, int):
            yield size, size
        elif isinstance(size, (tuple, list)) and len(size) >= 2:
            yield int(size[-2]), int(size[-1])
