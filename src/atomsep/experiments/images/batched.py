"""Augmentation of whole batches on the device, each sample in its own way.

Images of different sizes lie one after another in a flat tensor of bytes. An image of H x W pixels
takes H rows of three lines, red, green and blue: `(H, 3, W)`. A resize is then two products of
matrices per image, without copies in between.
"""

from __future__ import annotations

import torch
from torch import Tensor

from atomsep.experiments.images.augmentation import Draws, normalised
from atomsep.experiments.images.colour import change_colours


def windows(pixels: Tensor, images: Tensor, box: Tensor, extent: tuple[int, int]) -> Tensor:
    """Cut a box out of each image.

    Args:
        pixels: all images, flat.
        images: `(B, 3)`: start in `pixels`, height and width of each image.
        box: `(B, 4)`: top, left, height, width.
        extent: height and width of the result, at least those of all boxes.

    Returns:
        `(B, height, 3, width)`, bytes; 0 outside a box or its image.
    """
    tall, wide = extent
    start, height, width = (each.view(-1, 1, 1, 1) for each in images.unbind(1))
    top, left, rows, columns = (each.view(-1, 1, 1, 1) for each in box.unbind(1))
    y = torch.arange(tall, device=pixels.device).view(1, -1, 1, 1)
    x = torch.arange(wide, device=pixels.device).view(1, 1, 1, -1)
    line = torch.arange(3, device=pixels.device).view(1, 1, -1, 1)
    row, column = y + top, x + left
    inside = (y < rows) & (row >= 0) & (row < height)
    inside = inside & (x < columns) & (column >= 0) & (column < width)
    place = start + (row * 3 + line) * width + column
    return torch.where(inside, pixels[torch.where(inside, place, 0)], 0)


def cut_out(
    pixels: Tensor, images: Tensor, box: Tensor, extent: tuple[int, int], pin: bool = False
) -> Tensor:
    """The same as `windows`, image by image, which is faster in the host's memory.

    Args:
        pixels: as for `windows`.
        images: as for `windows`.
        box: as for `windows`.
        extent: as for `windows`.
        pin: return pinned memory, which is sent to a GPU without waiting.
    """
    result = torch.zeros(len(box), extent[0], 3, extent[1], dtype=torch.uint8, pin_memory=pin)
    flat = pixels.numpy()
    for into, image, place in zip(result.numpy(), images.tolist(), box.tolist(), strict=True):
        (start, height, width), (top, left, rows, columns) = image, place
        lines = flat[start : start + height * 3 * width].reshape(height, 3, width)
        first, last = max(top, 0), min(top + rows, height)
        west, east = max(left, 0), min(left + columns, width)
        into[first - top : last - top, :, west - left : east - left] = lines[
            first:last, :, west:east
        ]
    return result


def resample(crops: Tensor, box: Tensor, flip: Tensor, size: int) -> Tensor:
    """Resize crops of different sizes as torch's bilinear resize with antialiasing does.

    Args:
        crops: `(B, height, 3, width)`; each crop lies at the upper left.
        box: `(B, 4)`; the last two are the height and the width of each crop.
        flip: `(B,)`: whether left and right change places.
        size: height and width of the result.

    Returns:
        `(B, size, 3, size)`, floats.
    """
    count, tall, _, wide = crops.shape
    vertical = _weights(box[:, 2], size, tall, torch.zeros_like(flip))
    horizontal = _weights(box[:, 3], size, wide, flip)
    lines = vertical @ crops.float().view(count, tall, 3 * wide)
    result = lines.view(count, 3 * size, wide) @ horizontal.transpose(1, 2)
    return result.view(count, size, 3, size)


def _weights(lengths: Tensor, size: int, longest: int, reverse: Tensor) -> Tensor:
    """Share of each input pixel in each output pixel, `(B, size, longest)`.

    A triangle around the output pixel's centre, as wide as one output pixel to each side, or one
    input pixel if that is wider.
    """
    length = lengths.view(-1, 1, 1)
    out = torch.arange(size, device=lengths.device).view(1, -1, 1)
    out = torch.where(reverse.view(-1, 1, 1), size - 1 - out, out)
    into = torch.arange(longest, device=lengths.device).view(1, 1, -1)
    # Twice the distance of the centres times `size`: exact, because all numbers are whole.
    distance = ((2 * into + 1) * size - (2 * out + 1) * length).abs()
    share = 1 - distance.float() / (2 * length.clamp(min=size))
    share = share.clamp(min=0).masked_fill(into >= length, 0)
    return share / share.sum(2, keepdim=True)


def change_batch(crops: Tensor, draws: Draws, size: int) -> Tensor:
    """The images of a batch after their draws, normalised.

    Args:
        crops: `(B, height, 3, width)`, bytes, from `windows`.
        draws: the draws of these samples, on the same device.
        size: height and width of the result.

    Returns:
        `(B, 3, size, size)` with the channels last in memory.
    """
    images = resample(crops, draws.box, draws.flip, size)
    images = images.permute(0, 2, 1, 3).contiguous(memory_format=torch.channels_last)
    images = images.mul_(1 / 255)
    if draws.colour is not None:
        images = change_colours(images, draws.colour)
    return normalised(images)
