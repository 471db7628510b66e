"""Colour jitter and grey for batches: torchvision's formulas, with draws of each sample's own."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from atomsep.experiments.randomness import uniforms

JITTER, HUE, JITTERED, GREY = 0.4, 0.1, 0.8, 0.2
"""Strength of brightness, contrast and saturation; of hue; shares of images changed, and grey."""

BRIGHTNESS, CONTRAST, SATURATION, SHIFT = range(4)
"""Changes of colour, as `Colour.order` numbers them."""

NEUTRAL = (1.0, 1.0, 1.0, 0.0)
"""Factors that change nothing."""

FIRST = 100
"""Number of the first draw for colours; crops take those before."""

LUMA = (0.2989, 0.587, 0.114)
"""Shares of red, green and blue in the grey of torchvision."""


class Colour(NamedTuple):
    """Changes of colour, per sample.

    Attributes:
        order: `(n, 4)`: brightness, contrast, saturation and hue (0 to 3) in the order to apply.
        factors: `(n, 4)`: of brightness, contrast and saturation (1: no change), and the hue's
            shift (0: no change).
        grey: `(n,)`: whether the image becomes grey at the end.
    """

    order: Tensor
    factors: Tensor
    grey: Tensor


def draw_colours(states: Any) -> Colour:
    """What torchvision's `ColorJitter` and `RandomGrayscale` would draw, per sample.

    Args:
        states: states of the samples' random numbers; see `sample_states`.
    """
    draws = uniforms(states, FIRST, 10)
    order = draws[:, :4].argsort(1)
    factors = NEUTRAL + np.array([JITTER, JITTER, JITTER, HUE]) * (2 * draws[:, 4:8] - 1)
    factors[draws[:, 8] >= JITTERED] = NEUTRAL
    grey = torch.from_numpy(draws[:, 9] < GREY)
    return Colour(torch.from_numpy(order), torch.from_numpy(factors).float(), grey)


def change_colours(images: Tensor, colour: Colour) -> Tensor:
    """Change brightness, contrast, saturation and hue in each sample's order, then make some grey.

    Hue is by far the slowest, and therefore computed once for the whole batch: the other changes
    are made before it or after it. A factor of 1 changes nothing, not even by rounding.

    Args:
        images: `(B, 3, H, W)`, from 0 to 1.
        colour: the changes.
    """
    hue_at = (colour.order == SHIFT).long().argmax(1)
    for step in (0, 1, 2):
        images = _blend(images, colour, step, step < hue_at)
    shift = colour.factors[:, SHIFT].view(-1, 1, 1)
    images = torch.where(shift[:, None] == 0, images, _shift_hue(images, shift))
    for step in (1, 2, 3):
        images = _blend(images, colour, step, step > hue_at)
    return torch.where(colour.grey.view(-1, 1, 1, 1), _grey(images), images)


def change_image(image: Tensor, colour: Colour) -> Tensor:
    """The same as `change_colours` for one image `(3, H, W)`, step by step: faster on a CPU."""
    image = image[None]
    order, factors, grey = (each[0].tolist() for each in colour)
    for kind in order:
        factor = factors[kind]
        if factor == NEUTRAL[kind]:
            continue
        if kind == SHIFT:
            image = _shift_hue(image, image.new_full((1, 1, 1), factor))
        elif kind == BRIGHTNESS:
            image = (image * factor).clamp_(0, 1)
        else:
            other = _grey(image).mean() if kind == CONTRAST else _grey(image)
            image = (image * factor).add_(other, alpha=1 - factor).clamp_(0, 1)
    changed: Tensor = _grey(image).expand_as(image) if grey else image
    return changed[0]


def _grey(images: Tensor) -> Tensor:
    return images[:, :1] * LUMA[0] + images[:, 1:2] * LUMA[1] + images[:, 2:] * LUMA[2]


def _blend(images: Tensor, colour: Colour, step: int, applies: Tensor) -> Tensor:
    """Change brightness, contrast or saturation: move away from black, mean grey, or grey."""
    kind = colour.order[:, step]
    factor = torch.where(applies, colour.factors.gather(1, kind[:, None])[:, 0], 1)
    kind, factor, grey = kind.view(-1, 1, 1, 1), factor.view(-1, 1, 1, 1), _grey(images)
    other = torch.where(kind == CONTRAST, grey.mean((1, 2, 3), keepdim=True), grey)
    other = torch.where(kind == BRIGHTNESS, 0, other)
    return (images * factor + other * (1 - factor)).clamp_(0, 1)


def _shift_hue(images: Tensor, shift: Tensor) -> Tensor:
    """Turn the hue of images `(B, 3, H, W)` by shares of a whole turn.

    Saturation and value stay: a pixel keeps its largest and smallest channel, and the hue says
    where between them the others lie.
    """
    red, green, blue = images.unbind(1)
    low, high = images.amin(1), images.amax(1)
    chroma = high - low
    safe = torch.where(chroma == 0, 1, chroma)
    hue = torch.where(
        high == red,
        (green - blue) / safe,
        torch.where(high == green, 2 + (blue - red) / safe, 4 + (red - green) / safe),
    )
    hue = (hue + 6 * shift)[:, None]
    turn = 5 - 2 * torch.arange(3, device=images.device).view(1, 3, 1, 1)  # 5, 3, 1
    share = (hue + turn).remainder(6)
    return high[:, None] - chroma[:, None] * torch.minimum(share, 4 - share).clamp(0, 1)
