"""Random crops, flips and colours: what is drawn for each sample, and how an image is changed.

A sample's draws depend on the seed, the epoch and its index, never on its batch. They are made on
the CPU for a whole epoch at once, and applied to batches on the device (`batched.py`) or to single
Pillow images in loading processes (here); both give the same images up to rounding.

Torchvision's `transforms.v2` draws once for a whole batch, and kornia for each sample of it; but
both draw from torch's global generator, where a sample's draws depend on all that were made before
them, and both take only batches of images of one size.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torchvision.transforms.v2 import functional

from atomsep.experiments.errors import ExperimentError
from atomsep.experiments.images.colour import Colour, change_image, draw_colours
from atomsep.experiments.loading import DrawKey
from atomsep.experiments.randomness import sample_states, uniforms

if TYPE_CHECKING:
    from PIL.Image import Image

MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)

TRIES, RATIO = 10, (3 / 4, 4 / 3)
"""Crops that are tried, and their aspect ratios, as in torchvision's `RandomResizedCrop`."""


class Draws(NamedTuple):
    """What is drawn for each sample.

    Attributes:
        box: `(n, 4)`: top, left, height and width of the crop; it may lie partly outside the
            image, where there is black.
        flip: `(n,)`: whether left and right change places.
        colour: changes of colour, or None.
    """

    box: Tensor
    flip: Tensor
    colour: Colour | None

    def rows(self, part: slice) -> Draws:
        """The draws of some of the samples."""
        colour = None if self.colour is None else Colour(*(each[part] for each in self.colour))
        return Draws(self.box[part], self.flip[part], colour)

    def to(self, device: torch.device) -> Draws:
        """The draws on a device."""
        colour = self.colour
        moved = None if colour is None else Colour(*(each.to(device) for each in colour))
        return Draws(self.box.to(device), self.flip.to(device), moved)


@dataclass(frozen=True)
class Augmentation:
    """A recipe of augmentation.

    Args:
        name: "none": the centre of the image; "crop-flip": random resized crop and flip;
            "crop-flip-colour": and colour jitter and grey; "pad-crop-flip": the centre, moved by up
            to an eighth of the size, with a black border, and flipped, as is usual for CIFAR.
        size: width and height of the result.
        crop_scale: smallest share of the area that a random resized crop takes.
        stored: length that the shorter side of an image is reduced to, if it is longer, before a
            random resized crop; 0: twice the size.

    Raises:
        ExperimentError: `crop_scale` or `stored` is out of range.
    """

    name: str
    size: int
    crop_scale: float = 1.0
    stored: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.crop_scale <= 1:
            raise ExperimentError(f"crop_scale must lie in (0, 1], not {self.crop_scale}")
        if 0 < self.stored < self.size:
            raise ExperimentError(
                f"stored={self.stored} is smaller than image={self.size}; use at least the image's "
                f"size, or 0 for twice the size"
            )

    @property
    def is_central(self) -> bool:
        """Whether the images are of one size before anything is drawn."""
        return self.name in ("none", "pad-crop-flip")

    @property
    def bound(self) -> int:
        """Longest shorter side of an image before a random resized crop."""
        return self.stored or 2 * self.size

    def prepare(self, image: Image) -> Image:
        """The part of the recipe that is the same in every epoch."""
        if self.is_central:
            image = functional.resize(image, [round(self.size * 256 / 224)])
            image = functional.center_crop(image, [self.size, self.size])
        elif min(image.size) > self.bound:
            image = functional.resize(image, [self.bound])
        return image

    def draw(self, key: DrawKey, indices: Any, heights: Any, widths: Any) -> Draws:
        """What is drawn for some samples in an epoch.

        Args:
            key: seed, purpose and epoch.
            indices: indices of the samples, `(n,)`.
            heights: heights of their images after `prepare`, `(n,)`.
            widths: widths of their images after `prepare`, `(n,)`.
        """
        states = sample_states(indices, *key)
        heights, widths = np.asarray(heights), np.asarray(widths)
        draws = uniforms(states, 0, 3)
        flip = draws[:, 0] < 0.5
        if self.name == "none":
            box, flip = _whole(heights, widths), np.zeros_like(flip)
        elif self.name == "pad-crop-flip":
            box, most = _whole(heights, widths), self.size // 8
            box[:, :2] = np.floor(draws[:, 1:] * (2 * most + 1)) - most
        else:
            box = _resized_crops(states, heights, widths, self.crop_scale)
        colour = draw_colours(states) if self.name == "crop-flip-colour" else None
        return Draws(torch.from_numpy(box), torch.from_numpy(flip), colour)

    def __call__(self, image: Image, key: DrawKey) -> Tensor:
        """A random view of one Pillow image, `(3, size, size)`, normalised.

        Args:
            image: the image.
            key: seed, purpose, epoch and index.
        """
        image = self.prepare(image)
        *where, index = key
        draws = self.draw(tuple(where), [index], [image.height], [image.width])
        image = functional.resized_crop(image, *draws.box[0].tolist(), size=[self.size] * 2)
        if draws.flip[0]:
            image = functional.horizontal_flip(image)
        pixels: Tensor = functional.pil_to_tensor(image).float().mul_(1 / 255)
        if draws.colour is not None:
            pixels = change_image(pixels, draws.colour)
        return normalised(pixels)


def normalised(images: Tensor) -> Tensor:
    """Images `(..., 3, H, W)` in [0, 1] by ImageNet's mean and deviation."""
    mean, deviation = _norm(images.device)
    result: Tensor = images - mean
    return result.div_(deviation)


@cache
def _norm(device: torch.device) -> Tensor:
    """Mean and deviation on a device, where they are sent only once."""
    return torch.tensor((MEAN, DEVIATION), device=device).view(2, 3, 1, 1)


def _whole(heights: Any, widths: Any) -> Any:
    box = np.zeros((len(heights), 4), np.int64)
    box[:, 2], box[:, 3] = heights, widths
    return box


def _resized_crops(states: Any, heights: Any, widths: Any, smallest: float) -> Any:
    """Boxes with a random share of the area and a random aspect ratio."""
    low, high = (math.log(ratio) for ratio in RATIO)
    # Where no try fits: the largest central box with an allowed ratio.
    box = _whole(heights, widths)
    box[:, 2] = np.minimum(heights, np.rint(widths / RATIO[0]))
    box[:, 3] = np.minimum(widths, np.rint(heights * RATIO[1]))
    box[:, 0], box[:, 1] = (heights - box[:, 2]) // 2, (widths - box[:, 3]) // 2
    left = np.arange(len(states))
    for number in range(TRIES):
        draws = uniforms(states[left], 4 + 4 * number, 4)
        area = heights[left] * widths[left] * (smallest + (1 - smallest) * draws[:, 0])
        ratio = np.exp(low + (high - low) * draws[:, 1])
        sides = np.rint(np.sqrt(np.stack((area / ratio, area * ratio), 1))).astype(np.int64)
        spare = np.stack((heights[left], widths[left]), 1) - sides
        fits = ((sides > 0) & (spare >= 0)).all(1)
        found = np.concatenate((np.floor(draws[:, 2:] * (spare + 1)), sides), 1)
        box[left[fits]] = found[fits]
        left = left[~fits]
        if not len(left):
            break
    return box
