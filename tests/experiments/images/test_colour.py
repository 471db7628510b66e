"""Colour jitter in batches, against torchvision's, image by image."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torchvision.transforms.v2 import functional

from atomsep.experiments.images.colour import Colour, change_colours, change_image, draw_colours
from atomsep.experiments.randomness import sample_states

ADJUST = (
    functional.adjust_brightness,
    functional.adjust_contrast,
    functional.adjust_saturation,
    functional.adjust_hue,
)


def test_colours_are_torchvision_s() -> None:
    """Sixty samples, each with its own order and factors, grey or not, some unchanged."""
    colour = draw_colours(sample_states(np.arange(60), 0, "augmentation"))
    assert len(colour.order.unique(dim=0)) > 15
    rng = torch.Generator().manual_seed(0)
    images = torch.rand(60, 3, 8, 9, generator=rng)
    images[:, :, 0, 0], images[:, :, 0, 1], images[:, :, 0, 2] = 0, 1, 0.5
    images[:, :, 1, :3] = torch.eye(3)
    found = change_colours(images.clone(), colour)
    for row in range(60):
        expected = images[row]
        for number in colour.order[row].tolist():
            expected = ADJUST[number](expected, float(colour.factors[row, number]))
        if colour.grey[row]:
            expected = functional.rgb_to_grayscale(expected, num_output_channels=3)
        torch.testing.assert_close(found[row], expected, rtol=0, atol=2e-6)
        alone = change_image(images[row], Colour(*(each[row : row + 1] for each in colour)))
        torch.testing.assert_close(alone, expected, rtol=0, atol=2e-6)


@pytest.mark.parametrize("kind", range(4))
def test_each_change_of_colour_is_torchvision_s(kind: int) -> None:
    images = torch.rand(2, 3, 8, 9, generator=torch.Generator().manual_seed(1))
    for factor in (-0.1, 0.03, 0.1) if kind == 3 else (0.6, 0.9, 1.4):
        factors = torch.tensor([[1, 1, 1, 0.0]]).repeat(2, 1)
        factors[:, kind] = factor
        order = torch.tensor([[0, 1, 2, 3], [3, 2, 1, 0]])
        found = change_colours(images.clone(), Colour(order, factors, torch.zeros(2).bool()))
        torch.testing.assert_close(found, ADJUST[kind](images, factor), rtol=0, atol=2e-6)


def test_no_change_of_colour_leaves_every_bit() -> None:
    images = torch.rand(4, 3, 8, 9)
    factors = torch.tensor([[1, 1, 1, 0.0]]).repeat(4, 1)
    order = torch.tensor([[0, 1, 2, 3]]).repeat(4, 1)
    found = change_colours(images.clone(), Colour(order, factors, torch.zeros(4).bool()))
    assert torch.equal(found, images)
    alone = change_image(images[0], Colour(order[:1], factors[:1], torch.zeros(1).bool()))
    assert torch.equal(alone, images[0])
