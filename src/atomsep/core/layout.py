"""Which axis holds the tokens: a layer's output as `(M, N, h)`, without moving a number."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

Axes = Literal["channels_first", "channels_last", "length_first"]

DESCRIPTIONS: dict[Axes, str] = {
    "channels_first": "(M, C, H, W), (M, C, L)",
    "channels_last": "(M, L, C), (M, H, W, C)",
    "length_first": "(L, M, C)",
}


@dataclass(frozen=True)
class Layout:
    """A view of a layer's output as tokens.

    Attributes:
        axes: where samples, tokens and features are.
        skip: tokens left out in front (class tokens).
    """

    axes: Axes = "channels_last"
    skip: int = 0

    def tokens(self, output: Tensor) -> Tensor:
        """The output as `(M, N, h)`; a view wherever the strides allow one."""
        if self.axes == "channels_first":
            tokens = output.flatten(2).transpose(1, 2)
        elif self.axes == "channels_last":
            tokens = output.flatten(1, -2)
        else:
            tokens = output.transpose(0, 1)
        return tokens[:, self.skip :] if self.skip else tokens

    def sizes(self, output: Tensor) -> tuple[int, int, int]:
        """M, N and h, without making the view."""
        shape = output.shape
        if self.axes == "channels_first":
            return shape[0], math.prod(shape[2:]) - self.skip, shape[1]
        if self.axes == "channels_last":
            return shape[0], math.prod(shape[1:-1]) - self.skip, shape[-1]
        return shape[1], shape[0] - self.skip, shape[2]

    def front(self, output: Tensor) -> Tensor:
        """The tokens that are skipped, `(M, skip, h)`."""
        return Layout(self.axes).tokens(output)[:, : self.skip]

    def token_shape(self, output: Tensor) -> tuple[int, ...]:
        """Shape of the tokens before any is skipped: `(M, H, W)` or `(M, L)`."""
        shape = tuple(output.shape)
        if self.axes == "channels_first":
            return (shape[0], *shape[2:])
        return shape[:-1] if self.axes == "channels_last" else (shape[1], shape[0])

    def empty_like(self, output: Tensor) -> Tensor:
        """New memory for a gradient of the output, with `tokens` guaranteed to be a view."""
        fresh = torch.empty_like(output)
        first, last = (2, output.dim()) if self.axes == "channels_first" else (1, output.dim() - 1)
        shape, stride = fresh.shape, fresh.stride()
        if all(stride[i] == shape[i + 1] * stride[i + 1] for i in range(first, last - 1)):
            return fresh
        return torch.empty_like(output, memory_format=torch.contiguous_format)

    def flatten_mask(self, mask: Tensor, output: Tensor) -> Tensor:
        """A mask of the layer's tokens, `(M, H, W)` or `(M, L)`, as `(M, N)`."""
        expected = self.token_shape(output)
        length = math.prod(expected[1:])
        if self.skip and mask.shape == (expected[0], length - self.skip):
            mask = torch.nn.functional.pad(mask, (self.skip, 0))
        if tuple(mask.shape) != expected and mask.shape != (expected[0], length):
            raise ValueError(
                f"the mask has shape {tuple(mask.shape)}, but the tokens of the layer, whose "
                f"output is {tuple(output.shape)}, have {expected}"
            )
        if mask.is_floating_point():
            raise TypeError(
                f"the mask is {mask.dtype}; it must be boolean or 0/1 integers, "
                f"true on real tokens (an additive mask of -inf is not one)"
            )
        flat = mask.flatten(1)
        flat = flat if flat.dtype == torch.bool else flat != 0
        return flat[:, self.skip :] if self.skip else flat

    def unflatten(self, per_token: Tensor, output_shape: tuple[int, ...]) -> Tensor:
        """Per-token numbers `(M, N)` in the shape of the tokens: `(M, H, W)` or `(M, L)`."""
        if self.skip or len(output_shape) == 3:
            return per_token
        spatial = output_shape[2:] if self.axes == "channels_first" else output_shape[1:-1]
        return per_token.reshape(len(per_token), *spatial)
