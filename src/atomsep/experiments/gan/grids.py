"""Pictures of generated images: a grid of samples, with their token importance beside it."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from atomsep.experiments.files import replacing, writing

POSITIVE, NEGATIVE = (200, 64, 47), (47, 79, 168)
"""Colours of the importances +1 and -1; 0 is white."""

GAP = 2
"""Pixels between images."""


def write_samples(path: Path, images: Tensor) -> None:
    """Write images, bytes `(n, channels, H, W)`, as a grid."""
    _write(path, _grid(images))


def write_importance(path: Path, images: Tensor, importance: Tensor) -> None:
    """Write images `(n, channels, H, W)` as a grid, with their token importance beside it.

    Args:
        path: the PNG file.
        images: bytes.
        importance: `(n, h, w)` in [-1, 1].
    """
    height, width = images.shape[-2:]
    large = torch.nn.functional.interpolate(importance.unsqueeze(1), (height, width))
    left, right = _grid(images), _grid(colours(large.squeeze(1)))
    gap = left.new_full((3, left.shape[1], 8 * GAP), 255)
    _write(path, torch.cat([left, gap, right], dim=2))


def colours(importance: Tensor) -> Tensor:
    """Importance `(n, h, w)` as colours `(n, 3, h, w)`: red above 0, white at 0, blue below.

    Example:
        >>> colours(torch.tensor([[[1.0, 0.0, -1.0]]]))[0, :, 0].tolist()
        [[200, 255, 47], [64, 255, 79], [47, 255, 168]]
    """
    value = importance.float().clamp(-1, 1).unsqueeze(1)
    ends = [torch.tensor(end).view(1, 3, 1, 1) for end in (POSITIVE, NEGATIVE)]
    end = torch.where(value >= 0, ends[0], ends[1])
    return (255 - value.abs() * (255 - end)).round().to(torch.uint8)


def _grid(images: Tensor) -> Tensor:
    from torchvision.utils import make_grid

    side = max(1, round(len(images) ** 0.5))
    grid: Tensor = make_grid(images.cpu(), nrow=side, padding=GAP, pad_value=255)
    return grid


def _write(path: Path, image: Tensor) -> None:
    from torchvision.transforms.functional import to_pil_image

    with writing(path), replacing(path) as part:
        to_pil_image(image).save(part, format="PNG")
