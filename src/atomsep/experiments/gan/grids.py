"""Pictures of generated images: a grid of samples, and the samples with their token importance."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from atomsep.experiments.files import CONTINUES, replacing, writing

GAP = 2
"""Pixels between images."""


def write_samples(path: Path, images: Tensor) -> None:
    """Write images, bytes `(n, channels, H, W)`, as a grid."""
    from torchvision.transforms.functional import to_pil_image
    from torchvision.utils import make_grid

    side = max(1, round(len(images) ** 0.5))
    grid = make_grid(images.cpu(), nrow=side, padding=GAP, pad_value=255)
    with writing(path, then=CONTINUES), replacing(path) as part:
        to_pil_image(grid).save(part, format="PNG")


def write_importance(path: Path, images: Tensor, importance: Tensor) -> None:
    """Write images `(n, channels, H, W)` with their token importance as a PNG file.

    Args:
        path: the file.
        images: bytes.
        importance: `(n, h, w)` in [-1, 1].
    """
    from atomsep.importance.figure import image_figure

    figure = image_figure(images, importance, what="image")
    with writing(path, then=CONTINUES), replacing(path) as part:
        figure.savefig(part, format="png")
