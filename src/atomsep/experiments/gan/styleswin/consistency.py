"""How images are changed for the balanced consistency of a discriminator (Zhao et al., 2021).

Logits should not change with the image's side, colours and place, nor without a part of it. Every
sample is changed in all ways, each by numbers of its own. All of it happens on the device, in the
discriminator's normalised colours, where 0 is ImageNet's mean colour.
"""

from __future__ import annotations

import torch
from torch import Tensor

BRIGHTNESS = 0.5
"""Largest change of brightness."""


@torch.no_grad()
def augment(images: Tensor) -> Tensor:
    """Changed copies of images `(M, C, H, W)` in normalised colours; see `Colours`.

    Example:
        >>> augment(torch.zeros(2, 3, 64, 64)).shape
        torch.Size([2, 3, 64, 64])
    """
    flipped = torch.where(_uniform(images, 0, 1) < 0.5, images.flip(3), images)
    return cut_out(colour(translate(flipped)))


def colour(images: Tensor) -> Tensor:
    """Other brightness, saturation (0 to 2 times) and contrast (0.5 to 1.5 times)."""
    images = images + _uniform(images, -BRIGHTNESS, BRIGHTNESS)
    grey = images.mean(1, keepdim=True)
    images = grey + (images - grey) * _uniform(images, 0, 2)
    mean = images.mean((1, 2, 3), keepdim=True)
    return mean + (images - mean) * _uniform(images, 0.5, 1.5)


def translate(images: Tensor) -> Tensor:
    """Moved by up to an eighth of the side in each direction; what comes in is 0."""
    size, side = len(images), images.shape[-1]
    most = side // 8
    moves = torch.randint(-most, most + 1, (2, size, 1), device=images.device)
    rows, columns = torch.arange(side, device=images.device) + moves
    inside = _inside(rows, side).unsqueeze(2) & _inside(columns, side).unsqueeze(1)
    samples = torch.arange(size, device=images.device).reshape(-1, 1, 1)
    place = (rows.clamp(0, side - 1).unsqueeze(2), columns.clamp(0, side - 1).unsqueeze(1))
    moved = images.permute(0, 2, 3, 1)[samples, place[0], place[1]].permute(0, 3, 1, 2)
    return moved * inside.unsqueeze(1)


def cut_out(images: Tensor) -> Tensor:
    """Without a square of half the side, whose centre is anywhere in the image."""
    size, side = len(images), images.shape[-1]
    centres = torch.randint(0, side + 1, (2, size, 1), device=images.device)
    start = centres - side // 4
    rows, columns = torch.arange(side, device=images.device) - start
    cut = _inside(rows, side // 2).unsqueeze(2) & _inside(columns, side // 2).unsqueeze(1)
    return images * ~cut.unsqueeze(1)


def _inside(places: Tensor, end: int) -> Tensor:
    return (places >= 0) & (places < end)


def _uniform(images: Tensor, low: float, high: float) -> Tensor:
    """A number for each image, `(M, 1, 1, 1)`."""
    shape = (len(images), 1, 1, 1)
    return low + (high - low) * torch.rand(shape, device=images.device, dtype=images.dtype)
