"""The true outlines of images, for comparison with maps: Pets has one for every image."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

if TYPE_CHECKING:
    from PIL.Image import Image

OBJECT, BACKGROUND, BORDER = 1, 2, 3
"""What the pixels of a trimap mean."""


def trimap_of(image: str | Path) -> Path:
    """Where torchvision's OxfordIIITPet has the trimap of an image file.

    Example:
        >>> trimap_of("pets/images/Abyssinian_1.jpg").as_posix()
        'pets/annotations/trimaps/Abyssinian_1.png'
    """
    path = Path(image)
    return path.parent.parent / "annotations" / "trimaps" / f"{path.stem}.png"


def read_outlines(
    images: Sequence[str], transform: Callable[[Image], Image]
) -> tuple[Tensor, Tensor] | None:
    """Which pixels show the object, and which the background; border pixels are neither.

    Args:
        images: the image files.
        transform: what images go through before the model sees them.

    Returns:
        Two tensors of zeros and ones, `(M, H, W)`, or None if a file has no trimap.
    """
    paths = [trimap_of(image) for image in images]
    if not paths or not all(path.is_file() for path in paths):
        return None
    kinds = torch.from_numpy(np.stack([_kinds(path, transform) for path in paths]))
    return (kinds == OBJECT).float(), (kinds == BACKGROUND).float()


def _kinds(path: Path, transform: Callable[[Image], Image]) -> np.ndarray:
    """What each pixel shows, after the transform: the kind that has most of it."""
    from PIL import Image

    with Image.open(path) as image:
        kinds = np.asarray(image)
    layers = [kinds == each for each in (OBJECT, BACKGROUND, BORDER)]
    mixed = transform(Image.fromarray(np.stack(layers, -1).astype(np.uint8) * 255))
    shown: np.ndarray = np.asarray(mixed).argmax(-1) + 1
    return shown
