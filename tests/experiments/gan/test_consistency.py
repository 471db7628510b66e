"""How images are changed for the balanced consistency of a discriminator."""

from __future__ import annotations

import naive_styleswin as naive
import torch
from torch import Tensor

from atomsep.experiments.gan.styleswin.colours import Colours
from atomsep.experiments.gan.styleswin.consistency import augment, colour, cut_out, translate


def test_the_changes_written_out() -> None:
    """Image by image and pixel by pixel, in normalised colours, with the same random numbers."""
    pixels = torch.rand(16, 3, 16, 16, dtype=torch.float64)
    colours = Colours().double()
    torch.manual_seed(1)
    found = augment(colours.enter(2 * pixels - 1))
    torch.manual_seed(1)
    expected = naive.changed(pixels)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)  # constants are in float32
    torch.manual_seed(1)
    in_other_colours = colours.enter(augment(2 * pixels - 1))
    assert (in_other_colours - expected).abs().mean() > 0.05


def test_images_are_changed_each_in_its_own_way() -> None:
    torch.manual_seed(0)
    images = torch.rand(32, 3, 16, 16, dtype=torch.float64) + 1
    torch.manual_seed(0)
    first = augment(images)
    assert first.shape == images.shape
    torch.manual_seed(0)
    assert torch.equal(augment(images), first)
    moved = translate(images)
    for before, after in zip(images[:8], moved, strict=False):
        places = [
            (dy, dx)
            for dy in range(-2, 3)
            for dx in range(-2, 3)
            if torch.equal(shifted(before, dy, dx), after)
        ]
        assert len(places) == 1
    cut = cut_out(images) == 0
    assert (cut == cut[:, :1]).all()
    areas = cut[:, 0].sum((1, 2))
    assert areas.min() >= 16
    assert areas.max() == 64
    painted = colour(images)
    grey = painted.mean(1, keepdim=True)
    ratio = (painted - grey) / (images - images.mean(1, keepdim=True))
    assert (ratio.amax((1, 2, 3)) - ratio.amin((1, 2, 3))).max() < 1e-8  # one factor per image
    assert ratio.mean((1, 2, 3)).std() > 0.3


def shifted(image: Tensor, dy: int, dx: int) -> Tensor:
    side = image.shape[-1]
    out = torch.zeros_like(image)
    for y in range(side):
        for x in range(side):
            if 0 <= y + dy < side and 0 <= x + dx < side:
                out[:, y, x] = image[:, y + dy, x + dx]
    return out
