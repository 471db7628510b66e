"""What is drawn for each sample: torchvision's distributions, and nothing but the key decides."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image
from scipy import stats
from torch import Tensor
from torchvision.transforms import v2

from atomsep.experiments.errors import ExperimentError
from atomsep.experiments.images.augmentation import DEVIATION, MEAN, Augmentation, Draws

KEY = (0, "augmentation", 3)
COUNT = 4000


def draw(recipe: Augmentation, height: int = 90, width: int = 120, count: int = COUNT) -> Draws:
    sizes = np.full(count, height), np.full(count, width)
    return recipe.draw(KEY, np.arange(count), *sizes)


def in_levels(image: Tensor) -> Tensor:
    """A normalised image as levels from 0 to 255."""
    return (image * torch.tensor(DEVIATION).view(3, 1, 1) + torch.tensor(MEAN).view(3, 1, 1)) * 255


def torchvision_boxes(height: int, width: int, smallest: float) -> Tensor:
    """Boxes of torchvision's own random resized crop."""
    crop = v2.RandomResizedCrop(32, scale=(smallest, 1.0))
    get = getattr(crop, "make_params", None) or crop._get_params
    image = torch.zeros(3, height, width)
    drawn = [get([image]) for _ in range(COUNT)]
    return torch.tensor([[each[k] for k in ("top", "left", "height", "width")] for each in drawn])


def probability(one: Tensor, other: Tensor) -> float:
    """Of a difference as large as this one, if both have one distribution."""
    return float(stats.ks_2samp(one.numpy(), other.numpy(), method="asymp").pvalue)


@pytest.mark.parametrize(
    ("height", "width", "smallest"),
    [(90, 120, 0.08), (90, 120, 0.35), (40, 140, 0.35), (140, 40, 0.35), (30, 300, 0.5)],
)
def test_crops_have_torchvision_s_distribution(height: int, width: int, smallest: float) -> None:
    box = draw(Augmentation("crop-flip", 32, smallest), height, width).box
    with torch.random.fork_rng():
        torch.manual_seed(0)
        theirs = torchvision_boxes(height, width, smallest)
    assert (box[:, :2] >= 0).all()
    assert (box[:, 0] + box[:, 2] <= height).all()
    assert (box[:, 1] + box[:, 3] <= width).all()
    for column in range(4):
        assert probability(box[:, column], theirs[:, column]) > 0.001, column
    areas = [each[:, 2] * each[:, 3] for each in (box, theirs)]
    assert probability(*areas) > 0.001


@pytest.mark.parametrize(
    ("height", "width", "expected"),
    [(10, 400, [0, 193, 10, 13]), (400, 10, [193, 0, 13, 10])],
)
def test_a_long_image_falls_back_to_its_middle(
    height: int, width: int, expected: list[int]
) -> None:
    """A crop of nearly the whole area cannot have an allowed ratio."""
    box = draw(Augmentation("crop-flip", 32, 0.99), height, width, 20).box
    assert box.tolist() == [expected] * 20


def test_draws_depend_on_the_sample_and_not_on_the_batch() -> None:
    recipe = Augmentation("crop-flip-colour", 32, 0.2)
    heights, widths = np.arange(30, 80), np.arange(99, 49, -1)
    whole = recipe.draw(KEY, np.arange(50), heights, widths)
    chosen = np.array([41, 3, 17])
    part = recipe.draw(KEY, chosen, heights[chosen], widths[chosen])
    for one, other in zip(whole[:2], part[:2], strict=True):
        assert torch.equal(one[chosen], other)
    assert whole.colour is not None
    assert part.colour is not None
    for one, other in zip(whole.colour, part.colour, strict=True):
        assert torch.equal(one[chosen], other)


def test_colours_have_torchvision_s_distribution() -> None:
    colour = draw(Augmentation("crop-flip-colour", 32, 0.2)).colour
    assert colour is not None
    changed = (colour.factors != torch.tensor([1, 1, 1, 0.0])).any(1)
    assert stats.binomtest(int(changed.sum()), COUNT, 0.8).pvalue > 0.001
    assert stats.binomtest(int(colour.grey.sum()), COUNT, 0.2).pvalue > 0.001
    for column, (low, high) in enumerate([(0.6, 1.4)] * 3 + [(-0.1, 0.1)]):
        values = (colour.factors[changed, column].numpy() - low) / (high - low)
        assert stats.kstest(values, "uniform").pvalue > 0.001, column
    orders, counts = np.unique(colour.order.numpy(), axis=0, return_counts=True)
    assert len(orders) == 24
    assert stats.chisquare(counts).pvalue > 0.001


def test_flips_are_half_and_shared_by_all_recipes() -> None:
    recipes = ("crop-flip", "crop-flip-colour", "pad-crop-flip")
    flips = [draw(Augmentation(name, 32)).flip for name in recipes]
    assert stats.binomtest(int(flips[0].sum()), COUNT, 0.5).pvalue > 0.001
    assert torch.equal(flips[0], flips[1])
    assert torch.equal(flips[0], flips[2])
    assert not draw(Augmentation("none", 32)).flip.any()


def test_padding_moves_by_every_whole_number_of_pixels() -> None:
    box = draw(Augmentation("pad-crop-flip", 32), 32, 32).box
    assert (box[:, 2:] == 32).all()
    for side in (0, 1):
        values, counts = box[:, side].unique(return_counts=True)
        assert values.tolist() == list(range(-4, 5))
        assert stats.chisquare(counts.numpy()).pvalue > 0.001


def test_padding_is_torchvision_s(monkeypatch: pytest.MonkeyPatch) -> None:
    pixels = np.random.default_rng(0).integers(0, 255, (32, 32, 3), dtype=np.uint8)
    image = Image.fromarray(pixels)
    padded = v2.functional.pad(image, [4, 4, 4, 4])
    recipe = Augmentation("pad-crop-flip", 32)
    # The centre is that of an image of 37 px; this one is the result.
    monkeypatch.setattr(Augmentation, "prepare", lambda recipe, image: image)
    draws = draw(recipe, 32, 32, 20)
    assert 0 < draws.flip.sum() < 20
    for index in range(20):
        top, left, _, _ = draws.box[index].tolist()
        expected = v2.functional.crop(padded, top + 4, left + 4, 32, 32)
        if draws.flip[index]:
            expected = v2.functional.horizontal_flip(expected)
        found = in_levels(recipe(image, (*KEY, index)))
        torch.testing.assert_close(found, v2.functional.pil_to_tensor(expected).float())


@pytest.mark.parametrize(("size", "expected"), [((500, 300), (107, 64)), ((60, 90), (60, 90))])
def test_large_images_are_reduced(size: tuple[int, int], expected: tuple[int, int]) -> None:
    image = Image.new("RGB", size)
    assert Augmentation("crop-flip", 32).prepare(image).size == pytest.approx(expected, abs=1)
    assert Augmentation("crop-flip", 32, stored=400).prepare(image).size == size


def test_the_centre_is_torchvision_s() -> None:
    pixels = np.random.default_rng(0).integers(0, 255, (70, 90, 3), dtype=np.uint8)
    image = Image.fromarray(pixels)
    steps = [v2.Resize(64), v2.CenterCrop(56), v2.ToImage(), v2.ToDtype(torch.float32, scale=True)]
    both = v2.Compose([*steps, v2.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))])
    found = Augmentation("none", 56)(image, (*KEY, 5))
    torch.testing.assert_close(found, torch.as_tensor(both(image)))


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"crop_scale": 0.0}, "crop_scale must lie in"), ({"stored": 20}, "stored=20 is smaller")],
)
def test_settings_out_of_range_are_refused(changes: dict[str, float], message: str) -> None:
    with pytest.raises(ExperimentError, match=message):
        Augmentation("crop-flip", 32, **changes)  # type: ignore[arg-type]
