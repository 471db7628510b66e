"""JPEG on tensors: what a batch of images looks like after compression, on any device.

Follows libjpeg step by step, without the lossless coding: YCbCr, colour at half the resolution
(4:2:0), cosine transform of blocks of 8 x 8, quantisation with the standard tables scaled by the
quality, and back, with the triangle filter for the colour. Rounding happens where libjpeg rounds,
so that a decoded image equals Pillow's.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import pad

BLOCK = 8

LUMINANCE = (
    *(16, 11, 10, 16, 24, 40, 51, 61, 12, 12, 14, 19, 26, 58, 60, 55),
    *(14, 13, 16, 24, 40, 57, 69, 56, 14, 17, 22, 29, 51, 87, 80, 62),
    *(18, 22, 37, 56, 68, 109, 103, 77, 24, 35, 55, 64, 81, 104, 113, 92),
    *(49, 64, 78, 87, 103, 121, 120, 101, 72, 92, 95, 98, 112, 100, 103, 99),
)
"""Steps of quantisation of the brightness at quality 50, row by row (annex K of the standard)."""

CHROMINANCE = (
    *(17, 18, 24, 47, 99, 99, 99, 99, 18, 21, 26, 66, 99, 99, 99, 99),
    *(24, 26, 56, 99, 99, 99, 99, 99, 47, 66, 99, 99, 99, 99, 99, 99),
    *(99,) * 32,
)
"""The same for the colour."""

WAVES = (
    *((8192, 8192, 8192, 8192), (11363, 9633, 6437, 2260), (10703, 4433, -4433, -10703)),
    *((9633, -2259, -11362, -6436), (8192, -8192, -8192, 8192), (6437, -11362, 2261, 9633)),
    *((4433, -10704, 10704, -4433), (2260, -6436, 9633, -11363)),
)
"""First halves of the cosine transform's rows, in units of 2^-13 with libjpeg's rounding.

The entries are sqrt(2) cos((2n + 1) k pi / 16); every other row is odd, the rest even.
"""


def compress(images: Tensor, quality: int) -> Tensor:
    """Images after JPEG compression.

    Args:
        images: bytes, `(n, 3, H, W)`, RGB.
        quality: from 1 to 100, as in libjpeg and Pillow.

    Example:
        >>> grey = torch.full((1, 3, 16, 16), 100, dtype=torch.uint8)
        >>> compress(grey, quality=50).unique()
        tensor([100], dtype=torch.uint8)
    """
    if not 1 <= quality <= 100:
        raise ValueError(f"quality must be between 1 and 100, not {quality}")
    height, width = images.shape[-2:]
    brightness, *colours = _to_ycc(images.int()).unbind(1)
    brightness = _quantised(brightness, LUMINANCE, quality)[:, :height, :width]
    rows, columns = -(-height // 2), -(-width // 2)
    blue, red = (
        _upsample(_quantised(_downsample(colour), CHROMINANCE, quality)[:, :rows, :columns])
        for colour in colours
    )
    rgb = _to_rgb(brightness, blue[:, :height, :width], red[:, :height, :width])
    return rgb.to(torch.uint8)


def quantisation(table: tuple[int, ...], quality: int) -> list[int]:
    """A standard table scaled as in libjpeg.

    Example:
        >>> quantisation(LUMINANCE, 50) == list(LUMINANCE), quantisation(LUMINANCE, 10)[0]
        (True, 80)
    """
    scale = 5000 // quality if quality < 50 else 200 - 2 * quality
    return [min(max((step * scale + 50) // 100, 1), 255) for step in table]


def _fixed(number: float) -> int:
    """A number in units of 2^-16, as in libjpeg's integer arithmetic."""
    return math.floor(number * 65536 + 0.5)


HALF = 1 << 15


def _to_ycc(images: Tensor) -> Tensor:
    r, g, b = images.unbind(1)
    middle = (128 << 16) + HALF - 1
    y = _fixed(0.299) * r + _fixed(0.587) * g + _fixed(0.114) * b + HALF
    cb = _fixed(0.5) * b - _fixed(0.16874) * r - _fixed(0.33126) * g + middle
    cr = _fixed(0.5) * r - _fixed(0.41869) * g - _fixed(0.08131) * b + middle
    return torch.stack([y, cb, cr], 1) >> 16


def _to_rgb(y: Tensor, cb: Tensor, cr: Tensor) -> Tensor:
    cb, cr = cb - 128, cr - 128
    r = y + ((_fixed(1.402) * cr + HALF) >> 16)
    g = y + ((-_fixed(0.34414) * cb - _fixed(0.71414) * cr + HALF) >> 16)
    b = y + ((_fixed(1.772) * cb + HALF) >> 16)
    return torch.stack([r, g, b], 1).clamp(0, 255)


def _downsample(colour: Tensor) -> Tensor:
    """Means of 2 x 2 pixels, of which every other one is rounded down and the next one up.

    Columns are filled up to a whole block beforehand, rows afterwards, as in libjpeg.
    """
    colour = _extended(colour, 2, 2 * BLOCK)
    total = sum(colour[:, i::2, j::2] for i in (0, 1) for j in (0, 1))
    bias = torch.arange(colour.shape[-1] // 2, device=colour.device, dtype=torch.int32) % 2 + 1
    return (total + bias) >> 2


def _upsample(colour: Tensor) -> Tensor:
    """Twice the resolution: every pixel is 3/4 the nearest and 1/4 the next, along both axes."""
    rows = pad(colour.unsqueeze(1).double(), (1, 1, 1, 1), "replicate").squeeze(1).int()
    near, above, below = rows[:, 1:-1], rows[:, :-2], rows[:, 2:]
    tall = torch.stack([3 * near + above, 3 * near + below], 2).flatten(1, 2)
    near, left, right = tall[..., 1:-1], tall[..., :-2], tall[..., 2:]
    return (torch.stack([3 * near + left + 8, 3 * near + right + 7], -1) >> 4).flatten(-2)


def _quantised(channel: Tensor, table: tuple[int, ...], quality: int) -> Tensor:
    """A channel `(n, H, W)` after the transform of its blocks, quantisation, and the way back.

    It is filled up to whole blocks. Both transforms keep two binary digits after the point between
    rows and columns. All products are exact in float64.
    """
    blocks = _extended(channel, BLOCK, BLOCK).double() - 128
    blocks = blocks.unflatten(-1, (-1, BLOCK)).unflatten(-3, (-1, BLOCK)).transpose(-3, -2)
    waves = _waves(channel.device)
    step = torch.tensor(quantisation(table, quality), device=channel.device).view(BLOCK, BLOCK)
    frequencies = _round(waves @ _round(4 * (blocks @ waves.T)) / 4)
    # Coefficients are 8 times too large here; ties are rounded away from 0.
    levels = (frequencies.abs() / (8 * step) + 0.5).floor() * frequencies.sign()
    found = _round(_round(4 * (waves.T @ (levels * step))) @ waves / 32)
    return (found + 128).clamp(0, 255).transpose(-3, -2).flatten(-2).flatten(-3, -2).int()


def _waves(device: torch.device) -> Tensor:
    """The cosine transform of 8 numbers, times sqrt(8): `(frequency, place)`."""
    half = torch.tensor(WAVES, device=device, dtype=torch.float64) / 8192
    other = half.flip(1)
    other[1::2] *= -1
    return torch.cat([half, other], 1)


def _extended(channel: Tensor, rows: int, columns: int) -> Tensor:
    """Repeat the last row and column up to a multiple of these numbers."""
    height, width = channel.shape[-2:]
    missing = (0, -width % columns, 0, -height % rows)
    if not any(missing):
        return channel
    return pad(channel.unsqueeze(1).double(), missing, "replicate").squeeze(1).int()


def _round(numbers: Tensor) -> Tensor:
    return (numbers + 0.5).floor()
