"""Augmentation in batches: every operation against torchvision's, image by image."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor
from torchvision.transforms.v2 import functional

from atomsep.experiments.images.augmentation import DEVIATION, MEAN, Augmentation
from atomsep.experiments.images.batched import change_batch, cut_out, resample, windows

SIZES = [(40, 61), (96, 50), (17, 23), (64, 64), (30, 200), (200, 31)]
"""Heights and widths of the images."""


def photographs() -> list[Image.Image]:
    """Smooth noise of several sizes, with black, white and grey somewhere."""
    rng = np.random.default_rng(0)
    images = []
    for height, width in SIZES:
        coarse = rng.integers(0, 256, (9, 9, 3), dtype=np.uint8)
        coarse[0, 0], coarse[4, 4], coarse[8, 8] = 0, 255, 128
        images.append(Image.fromarray(coarse).resize((width, height)))
    return images


def flatten(images: list[Image.Image]) -> tuple[Tensor, Tensor]:
    """All images in one flat tensor, and where each lies."""
    arrays = [np.asarray(image).transpose(0, 2, 1) for image in images]
    starts = np.cumsum([0, *(array.size for array in arrays)])[:-1]
    rows = [(start, a.shape[0], a.shape[2]) for start, a in zip(starts, arrays, strict=True)]
    pixels = np.concatenate([array.ravel() for array in arrays])
    return torch.from_numpy(pixels), torch.tensor(rows)


def planes(image: Image.Image) -> Tensor:
    pixels: Tensor = functional.pil_to_tensor(image)
    return pixels


BOXES = {
    "whole": [[0, 0, height, width] for height, width in SIZES],
    "upper left": [[0, 0, 11, 13]] * len(SIZES),
    "lower right": [[height - 9, width - 16, 9, 16] for height, width in SIZES],
    "one pixel": [[height // 2, width - 1, 1, 1] for height, width in SIZES],
    "outside": [[-4, -3, height + 2, width + 7] for height, width in SIZES],
    "ragged": [[3, 5, height - 7, width - 10] for height, width in SIZES],
}


@pytest.mark.parametrize("boxes", BOXES.values(), ids=BOXES)
@pytest.mark.parametrize("cut", [windows, cut_out])
def test_windows_are_pillow_s_crops(cut: Callable[..., Tensor], boxes: list[list[int]]) -> None:
    images = photographs()
    box = torch.tensor(boxes)
    extent = (int(box[:, 2].max()) + 2, int(box[:, 3].max()) + 1)
    found = cut(*flatten(images), box, extent)
    assert found.dtype == torch.uint8
    for image, (top, left, height, width), window in zip(images, boxes, found, strict=True):
        expected = torch.zeros(3, *extent, dtype=torch.uint8)
        crop = image.crop((left, top, left + width, top + height))
        expected[:, :height, :width] = planes(crop)
        assert torch.equal(window.permute(1, 0, 2), expected)


@pytest.mark.parametrize("size", [16, 33, 64])
@pytest.mark.parametrize("boxes", BOXES.values(), ids=BOXES)
def test_resized_crops_are_torchvision_s(boxes: list[list[int]], size: int) -> None:
    images, box = photographs(), torch.tensor(boxes)
    flip = torch.arange(len(SIZES)) % 2 == 1
    extent = (int(box[:, 2].max()), int(box[:, 3].max()))
    found = resample(windows(*flatten(images), box, extent), box, flip, size) / 255
    for image, place, turned, result in zip(images, boxes, flip, found, strict=True):
        pixels = planes(image).float() / 255
        expected = functional.resized_crop(pixels, *place, size=[size, size], antialias=True)
        if turned:
            expected = expected.flip(2)
        torch.testing.assert_close(result.permute(1, 0, 2), expected, rtol=0, atol=1e-5)


def test_a_resize_to_the_same_size_changes_nothing() -> None:
    crops = torch.randint(0, 256, (3, 32, 3, 32), dtype=torch.uint8)
    box = torch.tensor([[0, 0, 32, 32]] * 3)
    found = resample(crops, box, torch.zeros(3, dtype=torch.bool), 32)
    assert torch.equal(found, crops.float())


def in_levels(images: Tensor) -> Tensor:
    """Normalised images as levels from 0 to 255."""
    return (images * torch.tensor(DEVIATION).view(3, 1, 1) + torch.tensor(MEAN).view(3, 1, 1)) * 255


@pytest.mark.parametrize(
    ("name", "levels"),
    [("crop-flip", 1.01), ("crop-flip-colour", 4.6), ("pad-crop-flip", 1e-3), ("none", 1e-3)],
)
def test_batches_are_what_the_loader_makes(name: str, levels: float) -> None:
    """Pillow rounds resized images to whole levels; jitter can make 4.5 of one: 1.4 x 1.8 x 1.8."""
    recipe, key = Augmentation(name, 32, 0.2, 64), (3, "augmentation", 1)
    images = photographs() * 4
    pixels, rows = flatten([recipe.prepare(image) for image in images])
    draws = recipe.draw(key, np.arange(len(images)), rows[:, 1], rows[:, 2])
    extent = (int(draws.box[:, 2].max()), int(draws.box[:, 3].max()))
    found = change_batch(windows(pixels, rows, draws.box, extent), draws, 32)
    assert found.is_contiguous(memory_format=torch.channels_last)
    expected = torch.stack([recipe(image, (*key, n)) for n, image in enumerate(images)])
    assert (in_levels(found) - in_levels(expected)).abs().max() <= levels
