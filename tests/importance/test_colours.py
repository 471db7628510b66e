"""Colours at known charges, and what is claimed of the scale."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from atomsep.importance.colours import NO_TOKEN, colour_map, css, diverging, ink_on

# How dichromats see a colour, in linear RGB (Viénot, Brettel and Mollon, 1999).
DICHROMATS = {
    "protanope": [[0.11238, 0.88762, 0.0], [0.11238, 0.88762, 0.0], [0.00401, -0.00401, 1.0]],
    "deuteranope": [[0.29275, 0.70725, 0.0], [0.29275, 0.70725, 0.0], [-0.02234, 0.02234, 1.0]],
}
XYZ = np.array([[0.4125, 0.3576, 0.1804], [0.2127, 0.7152, 0.0722], [0.0193, 0.1192, 0.9503]])


def linear(colours: np.ndarray) -> np.ndarray:
    part = colours / 255
    return np.where(part <= 0.04045, part / 12.92, ((part + 0.055) / 1.055) ** 2.4)


def lab(rgb: np.ndarray) -> np.ndarray:
    """CIELAB of linear RGB."""
    xyz = rgb @ XYZ.T / XYZ.sum(1)
    root = np.where(xyz > 216 / 24389, np.cbrt(xyz), (24389 / 27 * xyz + 16) / 116)
    return np.stack(
        [
            116 * root[..., 1] - 16,
            500 * (root[..., 0] - root[..., 1]),
            200 * (root[..., 1] - root[..., 2]),
        ],
        axis=-1,
    )


def test_colours_at_the_ends_and_in_the_middle() -> None:
    charges = torch.tensor([[-1.0, 0.0, 1.0, 0.25, float("nan")]])
    assert diverging(charges).tolist() == [
        [[36, 108, 180], [255, 255, 255], [191, 62, 22], [247, 207, 188], [*NO_TOKEN]]
    ]
    assert diverging(charges).dtype == np.uint8


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_every_type_of_tensor_is_read(dtype: torch.dtype) -> None:
    charges = torch.tensor([-1, 0, 1], dtype=dtype, requires_grad=True)
    assert diverging(charges)[1].tolist() == [255, 255, 255]


def test_what_is_no_charge_is_refused() -> None:
    with pytest.raises(ValueError, match=r"charges lie in \[-1, 1\], but there is a -3\.5"):
        diverging(torch.tensor([0.5, -3.5]))


def test_both_signs_are_equally_dark_and_darker_with_every_step() -> None:
    amounts = np.linspace(0, 1, 101)
    positive, negative = (lab(linear(diverging(sign * amounts)))[:, 0] for sign in (1, -1))
    assert np.abs(positive - negative).max() < 1.0
    assert (np.diff(positive) < 0).all()
    assert (np.diff(negative) < 0).all()


@pytest.mark.parametrize("reader", DICHROMATS)
def test_signs_stay_apart_for_colour_blind_readers(reader: str) -> None:
    """A difference of 2.3 in CIELAB can just be seen; 0.1 of charge of either sign is above it."""
    seen = np.array(DICHROMATS[reader])
    for amount, least in ((0.1, 5), (0.5, 30), (1.0, 60)):
        colours = lab(linear(diverging([amount, -amount])) @ seen.T)
        assert np.linalg.norm(colours[0] - colours[1]) > least


def test_matplotlib_shows_the_same_colours() -> None:
    charges = np.array([-1, -0.5, 0, 0.5, 1])
    shown = colour_map()((charges + 1) / 2, bytes=True)[:, :3]
    np.testing.assert_array_equal(shown, diverging(charges))


def test_words_are_readable_on_every_colour() -> None:
    for charge in np.linspace(-1, 1, 201):
        paper = linear(diverging(charge)) @ XYZ[1]
        ink = 0.0 if ink_on(charge) == "#000000" else 1.0
        contrast = (max(paper, ink) + 0.05) / (min(paper, ink) + 0.05)
        assert contrast >= 4.5, "the Web Content Accessibility Guidelines' level AA"
        assert css(charge) == "#" + bytes(diverging(charge).tolist()).hex()
