"""The map of a known latent is known: pixels, places and colours of hand-made charges."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

import atomsep
from atomsep.importance.colours import NO_TOKEN, diverging
from atomsep.importance.figure import image_figure
from atomsep.importance.images import OPACITY, overlay, to_grid, to_pixels, triptychs, write_png


def impulse(shape: tuple[int, ...], *place: int) -> Tensor:
    charges = torch.zeros(1, *shape)
    charges[(0, *place)] = 1.0
    return charges


def lit(pixels: np.ndarray) -> tuple[slice, slice]:
    """The rows and columns whose charge is 1; every other pixel has none."""
    rows, columns = np.nonzero(pixels[0] == 1)
    box = slice(rows.min(), rows.max() + 1), slice(columns.min(), columns.max() + 1)
    expected = np.zeros_like(pixels[0])
    expected[box] = 1
    np.testing.assert_array_equal(np.nan_to_num(pixels[0]), expected)
    return box


def receptive_field(model: nn.Module, size: tuple[int, int], *token: int) -> Tensor:
    """The pixels that a token of the model's output depends on, by autograd."""
    image = torch.rand(1, 1, *size, dtype=torch.float64, requires_grad=True)
    model.double()(image)[(0, slice(None), *token)].sum().backward()
    assert image.grad is not None
    return image.grad[0, 0].nonzero()


def test_patches_cover_exactly_their_pixels() -> None:
    pixels = to_pixels(impulse((6,), 4), (8, 12))  # 2 x 3 patches of 4 pixels
    assert lit(pixels) == (slice(4, 8), slice(4, 8))
    seen = receptive_field(nn.Conv2d(1, 3, 4, stride=4), (8, 12), 1, 1)
    assert (seen.amin(0).tolist(), seen.amax(0).tolist()) == ([4, 4], [7, 7])


@pytest.mark.parametrize("size", [(32, 32), (33, 47), (31, 64), (7, 9), (225, 97)])
def test_the_centre_of_what_a_token_sees_lies_in_its_block(size: tuple[int, int]) -> None:
    """Strided convolutions with padding, of even and odd sizes."""
    layers = [nn.Conv2d(1, 1, 7, 2, 3), nn.MaxPool2d(3, 2, 1), nn.Conv2d(1, 1, 3, 2, 1)]
    model = nn.Sequential(*layers)
    height, width = model(torch.zeros(1, 1, *size)).shape[2:]
    for row in range(height):
        for column in range(width):
            block = lit(to_pixels(impulse((height, width), row, column), size))
            # Token i is centred on pixel 8 i: every padding is half of its kernel.
            assert block[0].start <= 8 * row < block[0].stop
            assert block[1].start <= 8 * column < block[1].stop
    # Autograd agrees where the image does not cut the field off.
    odd = nn.Sequential(nn.Conv2d(1, 1, 7, 2, 3), nn.Conv2d(1, 1, 3, 2, 1))
    seen = receptive_field(odd, (33, 47), 4, 5)
    assert ((seen.amin(0) + seen.amax(0)) / 2).tolist() == [16, 20]


def test_a_box_places_tokens_that_leave_out_a_border() -> None:
    """Convolutions without padding."""
    model = nn.Sequential(nn.Conv2d(1, 2, 5), nn.Conv2d(2, 2, 3))
    for token in ((0, 0), (10, 3), (21, 21)):
        seen = receptive_field(model, (28, 28), *token).double()
        pixels = to_pixels(impulse((22, 22), *token), (28, 28), box=(3, 3, 22, 22))
        rows, columns = lit(pixels)
        assert [rows.start, columns.start] == seen.mean(0).tolist()
        assert (rows.stop - rows.start, columns.stop - columns.start) == (1, 1)
    outside = np.isnan(pixels[0])
    assert outside.sum() == 28 * 28 - 22 * 22
    assert not outside[3:25, 3:25].any()


def test_a_box_places_the_crop_that_the_model_saw() -> None:
    """An image of 60 x 100; the model saw its central 48 x 48, reduced to 24 x 24."""
    pixels = to_pixels(impulse((4, 6), 0, 5), (60, 100), box=(6, 26, 48, 48))
    assert lit(pixels) == (slice(6, 18), slice(66, 74))


def test_transposed_convolutions_put_a_token_at_its_block() -> None:
    """The generator's layers: a token makes the pixels of its block, and one more on each side."""
    layer = nn.ConvTranspose2d(1, 1, 4, 2, 1, bias=False)
    made = layer(impulse((8, 8), 3, 6).unsqueeze(1)).detach()[0, 0].nonzero()
    rows, columns = lit(to_pixels(impulse((8, 8), 3, 6), (16, 16)))
    assert made.amin(0).tolist() == [rows.start - 1, columns.start - 1]
    assert made.amax(0).tolist() == [rows.stop, columns.stop]


def test_class_tokens_are_left_out_of_the_grid() -> None:
    charges = torch.arange(13).float().expand(2, -1) / 12
    expected = charges[:, 1:].reshape(2, 3, 4).numpy()
    np.testing.assert_array_equal(to_grid(charges, (48, 64), skip_tokens=1), expected)
    np.testing.assert_array_equal(to_grid(charges[:, 1:], (5, 5), grid=(3, 4)), expected)
    refusals = {
        r"13 tokens do not form a grid with the proportions of a 48 x 64 image": {},
        r"13 tokens do not form a grid of 3 x 4": {"grid": (3, 4)},
    }
    for message, where in refusals.items():
        with pytest.raises(ValueError, match=message):
            to_grid(charges, (48, 64), **where)
    with pytest.raises(ValueError, match=r"charges of shape \(2, 3, 4\) are not maps"):
        to_grid(torch.zeros(2, 3, 4), (48, 64), skip_tokens=1)


def test_maps_of_attached_layers() -> None:
    """Convolutions, and a sequence of patches with a class token, from attach to pixels."""

    class Patches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Conv2d(1, 8, 4, stride=4)
            self.norm = nn.LayerNorm(8)

        def forward(self, images: Tensor) -> Tensor:
            tokens = self.embed(images).flatten(2).transpose(1, 2)
            return self.norm(nn.functional.pad(tokens, (0, 0, 1, 0), value=0.1))

    model, images = Patches().eval(), torch.rand(2, 1, 8, 12)
    with (
        torch.no_grad(),
        atomsep.attach(model, "embed") as maps,
        atomsep.attach(model, "norm", skip_tokens=0) as whole,
        atomsep.attach(model, "norm", skip_tokens=1) as row,
    ):
        tokens = model(images)
        assert to_pixels(maps.importance, (8, 12)).shape == (2, 8, 12)
        expected = torch.tanh(tokens[:, 1:, 0] / 2).reshape(2, 2, 3)
        expected = expected.repeat_interleave(4, 1).repeat_interleave(4, 2).numpy()
        for found in (
            to_pixels(row.importance, (8, 12)),
            to_pixels(whole.importance, (8, 12), skip_tokens=1),
        ):
            np.testing.assert_allclose(found, expected, atol=1e-6)


def test_an_overlay_mixes_grey_and_the_charge() -> None:
    images = torch.tensor([0, 255], dtype=torch.uint8).view(1, 1, 1, 2).expand(1, 3, 1, 2)
    for charge in (-1.0, 0.0, 1.0):
        found = overlay(images, torch.full((1, 1, 1), charge))[0, 0].astype(float)
        colour = diverging(charge).astype(float)
        np.testing.assert_allclose(found[0], OPACITY * colour, atol=0.51)
        np.testing.assert_allclose(found[1], OPACITY * colour + (1 - OPACITY) * 255, atol=0.51)
    red = torch.tensor([1.0, 0, 0]).view(1, 3, 1, 1)
    assert len(set(overlay(red, torch.zeros(1, 1, 1))[0, 0, 0].tolist())) == 1, "no hue of its own"


def test_triptychs_hold_input_charges_and_overlay(tmp_path: Path) -> None:
    images = torch.randint(0, 256, (3, 3, 32, 48), dtype=torch.uint8)
    charges = torch.rand(3, 8, 12) * 2 - 1
    picture = triptychs(images, charges, columns=2, box=(0, 0, 32, 36))
    gap = 3
    for number in range(3):
        top = (number // 2) * (32 + 2 * gap) + 2 * gap
        left = (number % 2) * (3 * 48 + 5 * gap)
        rows = slice(top, top + 32)
        np.testing.assert_array_equal(
            picture[rows, left : left + 48], images[number].permute(1, 2, 0).numpy()
        )
        mapped = picture[rows, left + 48 + gap : left + 2 * 48 + gap]
        large = charges[number].repeat_interleave(4, 0).repeat_interleave(3, 1)
        np.testing.assert_array_equal(mapped[:, :36], diverging(large))
        assert (mapped[:, 36:] == NO_TOKEN).all()
        mixed = picture[rows, left + 2 * (48 + gap) : left + 3 * 48 + 2 * gap]
        np.testing.assert_array_equal(mixed, overlay(images, charges, box=(0, 0, 32, 36))[number])
    assert (picture[-32:, -3 * 48 :] == 255).all(), "no fourth sample"
    write_png(tmp_path / "maps.png", picture)
    with Image.open(tmp_path / "maps.png") as file:
        np.testing.assert_array_equal(np.asarray(file), picture)


def test_the_figure_shows_picture_scale_and_histogram(tmp_path: Path) -> None:
    images, charges = torch.rand(2, 1, 8, 8), torch.full((2, 17), 0.99)
    charges[:, 0] = -1.0  # the class tokens, which are not shown
    titles = ["$5 or <b>?", "a second"]
    figure = image_figure(images, charges, titles, skip_tokens=1)
    above, below = figure.axes
    assert [text.get_text() for text in above.texts] == titles
    heights = [bar.get_height() for bar in below.patches]
    assert heights == [0] * 39 + [100]
    [scale] = below.child_axes
    assert scale.get_xlabel() == "charge q of a token"
    assert scale.images[0].get_clim() == (-1, 1)
    for name in ("maps.png", "maps.pdf"):
        figure.savefig(tmp_path / name)
        assert (tmp_path / name).stat().st_size > 5000


def test_without_titles_the_first_row_stands_below_the_heading() -> None:
    black, charges = torch.zeros(4, 1, 8, 8), torch.zeros(4, 8, 8)
    heights = []
    for titles in (None, ["a"] * 4):
        figure = image_figure(black, charges, titles, columns=1, what="image")
        picture = figure.axes[0].images[0].get_array()
        heights.append(len(picture))
        assert (picture[0, 0] == 0).all() == (titles is None)
        assert figure.axes[0].get_title(loc="left") == "image | charges | overlay"
    assert heights[0] == 4 * 8 + 3 * 2, "two pixels between rows, and none above the first"


@pytest.mark.parametrize(
    ("images", "charges", "message"),
    [
        (torch.zeros(1, 4, 2, 2), torch.zeros(1, 1, 1), r"not \(1, 4, 2, 2\)"),
        (torch.full((1, 3, 2, 2), -2.1), torch.zeros(1, 1, 1), "from -2.1 to 0; undo the model's"),
        (torch.zeros(2, 3, 2, 2), torch.zeros(1, 1, 1), "2 images, but charges of 1 samples"),
        (torch.zeros(1, 3, 2, 2), torch.full((1, 1, 1), 1.5), "there is a 1.5"),
        (torch.zeros(1, 3, 2, 2), torch.tensor([[[0.5, float("nan")]]]), "1 of 2 charges are NaN"),
    ],
)
def test_refusals(images: Tensor, charges: Tensor, message: str) -> None:
    for draw in (triptychs, overlay, image_figure):
        with pytest.raises(ValueError, match=message):
            draw(images, charges)


def test_the_importance_of_several_layers_is_refused_by_name() -> None:
    several = {"layer1": torch.zeros(1, 1, 1), "layer2": torch.zeros(1, 1, 1)}
    with pytest.raises(
        TypeError, match=r"'layer1', 'layer2'; .* attachment.importance\['layer1'\]"
    ):
        image_figure(torch.zeros(1, 3, 2, 2), several)


def test_a_figure_needs_images() -> None:
    with pytest.raises(ValueError, match="there are no images to draw: the batch is empty"):
        image_figure(torch.zeros(0, 3, 2, 2), torch.zeros(0, 1, 1))
