"""Charges on images: which pixels a token stands for, and pictures that show it.

Every array here is a NumPy array. Images are `(M, C, H, W)`, as bytes or in [0, 1], with one or
three channels; charges are `(M, h, w)`, or `(M, L)` for a layer whose tokens are in a row.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from atomsep.importance.colours import as_charges, diverging

OPACITY = 0.6
"""Share of the charge's colour in an overlay; the rest is the image, in grey."""

Box = tuple[float, float, float, float]
"""Top, left, height and width in pixels."""


def to_grid(
    charges: Any,
    size: tuple[int, int],
    *,
    skip_tokens: int = 0,
    grid: tuple[int, int] | None = None,
) -> Any:
    """Charges as maps `(M, h, w)`.

    Args:
        charges: `(M, h, w)`, or `(M, L)` row by row.
        size: height and width of the images.
        skip_tokens: number of class tokens in front; 0 if `attach` left them out already.
        grid: h and w of `(M, L)` charges. By default that of square patches, which has the
            proportions of the image.

    Raises:
        ValueError: the tokens do not form such a grid, or a charge is NaN.

    Example:
        >>> to_grid([[0.9, 0, 0.1, 0.2, 0.3, 0.4, 0.5]], (32, 48), skip_tokens=1).shape
        (1, 2, 3)
    """
    charges = as_charges(charges, whole=True)
    if charges.ndim == 3 and not skip_tokens:
        return charges
    if charges.ndim != 2:
        raise ValueError(
            f"charges of shape {charges.shape} are not maps; pass (M, h, w), or (M, L) for tokens "
            f"in a row"
        )
    charges = charges[:, skip_tokens:]
    count, (height, width) = charges.shape[1], size
    if grid is None:
        fits = [h for h in range(1, count + 1) if h * width * h == count * height]
        if not fits:
            raise ValueError(
                f"{count} tokens do not form a grid with the proportions of a {height} x {width} "
                f"image; pass grid=(h, w), or skip_tokens= if class tokens are among them"
            )
        grid = (fits[0], count // fits[0])
    if grid[0] * grid[1] != count:
        raise ValueError(f"{count} tokens do not form a grid of {grid[0]} x {grid[1]}")
    return charges.reshape(len(charges), *grid)


def to_pixels(
    charges: Any,
    size: tuple[int, int],
    *,
    skip_tokens: int = 0,
    grid: tuple[int, int] | None = None,
    box: Box | None = None,
) -> Any:
    """The charge at every pixel: that of the token whose block contains the pixel's centre.

    Nothing is smoothed: each value is the charge of one token, and a token's block shows how
    coarse the layer is.

    Args:
        charges: `(M, h, w)` or `(M, L)`.
        size: height H and width W of the images.
        skip_tokens: as in `to_grid`.
        grid: as in `to_grid`.
        box: the part of the image that the tokens share evenly; the whole by default. Use it for
            the part that a model saw of a larger image, and for convolutions without padding,
            whose tokens leave out a border.

    Returns:
        `(M, H, W)`, NaN outside the box.

    Example:
        >>> to_pixels([[[0.5, -0.5]]], (2, 6), box=(0, 1, 2, 4))[0, 0]
        array([ nan,  0.5,  0.5, -0.5, -0.5,  nan], dtype=float32)
    """
    import numpy as np

    top, left, height, width = box or (0, 0, *size)
    maps = to_grid(charges, (round(height), round(width)), skip_tokens=skip_tokens, grid=grid)
    rows = _tokens_of(size[0], top, height, maps.shape[1])
    columns = _tokens_of(size[1], left, width, maps.shape[2])
    pixels = maps[:, rows[:, None], columns]
    outside = (rows < 0)[:, None] | (columns < 0)
    return np.where(outside, np.float32("nan"), pixels)


def _tokens_of(pixels: int, start: float, length: float, tokens: int) -> Any:
    """The token of each pixel of an axis; -1 outside."""
    import numpy as np

    found = np.floor((np.arange(pixels) + 0.5 - start) * tokens / length).astype(int)
    return np.where((found >= 0) & (found < tokens), found, -1)


def overlay(images: Any, charges: Any, **where: Any) -> Any:
    """Images in grey under the colours of their charges, bytes `(M, H, W, 3)`.

    Grey, so that every hue comes from a charge.

    Args:
        images: `(M, C, H, W)`.
        charges: `(M, h, w)` or `(M, L)`.
        where: `skip_tokens`, `grid` and `box`, as in `to_pixels`.
    """
    import numpy as np

    images = as_bytes(images)
    colours = diverging(_pixels_of(images, charges, where)).astype(np.float32)
    grey = (images @ np.array([0.299, 0.587, 0.114], dtype=np.float32))[..., None]
    return np.rint(OPACITY * colours + (1 - OPACITY) * grey).astype(np.uint8)


def triptychs(
    images: Any,
    charges: Any,
    *,
    columns: int | None = None,
    space: int | None = None,
    **where: Any,
) -> Any:
    """Input, charges and overlay of every sample side by side, in one picture.

    Args:
        images: `(M, C, H, W)`.
        charges: `(M, h, w)` or `(M, L)`.
        columns: samples in a row; by default as many as make the picture twice as wide as high.
        space: pixels above each row.
        where: `skip_tokens`, `grid` and `box`, as in `to_pixels`.

    Returns:
        Bytes `(H', W', 3)`.

    Example:
        >>> picture = triptychs([[[[0.0, 1.0]]]], [[[-1.0, 1.0]]], space=0)
        >>> picture[0, [0, 1, 3, 4]].tolist()  # input, then charges
        [[0, 0, 0], [255, 255, 255], [36, 108, 180], [191, 62, 22]]
    """
    import numpy as np

    shown = as_bytes(images)
    maps = diverging(_pixels_of(shown, charges, where))
    parts = [shown, maps, overlay(images, charges, **where)]
    height, width = shown.shape[1:3]
    columns = columns or default_columns(len(shown), (height, width))
    gap, period = gap_of(width), sample_width(width)
    space = 2 * gap if space is None else space
    rows = -(-len(shown) // columns)
    whole = (rows * (height + space), columns * period - 3 * gap, 3)
    picture = np.full(whole, 255, np.uint8)
    for number, sample in enumerate(zip(*parts, strict=True)):
        row, column = divmod(number, columns)
        top = row * (height + space) + space
        for place, part in enumerate(sample):
            left = column * period + place * (width + gap)
            picture[top : top + height, left : left + width] = part
    return picture


def gap_of(width: int) -> int:
    """Pixels between two pictures of a sample."""
    return max(1, width // 16)


def sample_width(width: int) -> int:
    """Pixels from one sample to the next in a row of `triptychs`."""
    return 3 * width + 5 * gap_of(width)


def default_columns(count: int, size: Sequence[int]) -> int:
    """Samples in a row of a picture that is about twice as wide as high."""
    shape = size[0] / sample_width(size[1])
    return max(1, min(count, round(math.sqrt(2 * count * shape))))


def write_png(path: str | Path, picture: Any) -> None:
    """Write bytes `(H, W, 3)` as a PNG file."""
    from PIL import Image

    Image.fromarray(picture).save(path, format="PNG")


def as_bytes(images: Any) -> Any:
    """Images `(M, C, H, W)`, as bytes or in [0, 1], as bytes `(M, H, W, 3)`.

    Raises:
        ValueError: they are not such images.
    """
    import numpy as np

    if hasattr(images, "detach"):
        images = images.detach().cpu().numpy()
    images = np.asarray(images)
    if images.ndim != 4 or images.shape[1] not in (1, 3):
        raise ValueError(f"images must have shape (M, 1, H, W) or (M, 3, H, W), not {images.shape}")
    if images.dtype != np.uint8:
        low, high = images.min(initial=0), images.max(initial=0)
        if not (low >= 0 and high <= 1):
            raise ValueError(
                f"images must be bytes or lie in [0, 1], but reach from {low:.3g} to {high:.3g}; "
                f"undo the model's normalisation first"
            )
        images = np.rint(255 * images).astype(np.uint8)
    return np.broadcast_to(images, (len(images), 3, *images.shape[2:])).transpose(0, 2, 3, 1)


def _pixels_of(images: Any, charges: Any, where: dict[str, Any]) -> Any:
    """The charges at the pixels of `(M, H, W, 3)`."""
    pixels = to_pixels(charges, images.shape[1:3], **where)
    if len(pixels) != len(images):
        raise ValueError(f"there are {len(images)} images, but charges of {len(pixels)} samples")
    return pixels
