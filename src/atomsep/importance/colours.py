"""The colours of charges: blue for -1, white for 0, orange-red for +1.

Blue and orange-red stay apart for colour-blind readers, and equal amounts of either sign are
equally dark, so neither looks stronger. The scale is always [-1, 1]: the same colour means the same
charge in every picture.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

STOPS: tuple[tuple[float, tuple[int, int, int]], ...] = (
    (-1.0, (36, 108, 180)),
    (-0.5, (139, 180, 221)),
    (0.0, (255, 255, 255)),
    (0.5, (239, 159, 122)),
    (1.0, (191, 62, 22)),
)
"""Charges and their colours, red, green and blue; linear in between."""

NO_TOKEN = (200, 200, 200)
"""The colour where there is no charge: NaN."""

INK = "#1f2743"
"""The colour of text and axes."""


def as_charges(values: Any, *, whole: bool = False) -> Any:
    """Charges as a float32 NumPy array.

    Args:
        values: a tensor on any device, an array, or nested lists.
        whole: whether to refuse NaN, which otherwise stands for no charge.

    Raises:
        ValueError: a value is not a charge.
        TypeError: they are a dictionary, as the importance of several layers is.
    """
    import numpy as np

    if isinstance(values, Mapping):
        raise TypeError(
            f"charges must be those of one layer, not a dictionary with those of "
            f"{', '.join(map(repr, values))}; pass one of its values, such as "
            f"attachment.importance[{next(iter(values), 'LAYER')!r}]"
        )
    if hasattr(values, "detach"):
        values = values.detach().float().cpu()
    charges = np.asarray(values, dtype=np.float32)
    beyond = np.abs(charges) > 1
    if beyond.any():
        raise ValueError(
            f"charges lie in [-1, 1], but there is a {charges[beyond][0]:g}; pass "
            f"`attachment.importance`, not the layer's output"
        )
    missing = int(np.isnan(charges).sum())
    if whole and missing:
        raise ValueError(
            f"{missing} of {charges.size} charges are NaN, as where the layer's output holds NaN; "
            f"check the model up to this layer"
        )
    return charges


def diverging(values: Any) -> Any:
    """The colours of charges: `(...)` to bytes `(..., 3)`, grey for NaN.

    Raises:
        ValueError: a value is not a charge.

    Example:
        >>> diverging([-1, 0, 1]).tolist()
        [[36, 108, 180], [255, 255, 255], [191, 62, 22]]
    """
    import numpy as np

    charges = as_charges(values)
    places, colours = zip(*STOPS, strict=True)
    channels = [np.interp(charges, places, channel) for channel in zip(*colours, strict=True)]
    mixed = np.where(np.isnan(charges)[..., None], NO_TOKEN, np.stack(channels, axis=-1))
    return np.rint(mixed).astype(np.uint8)


def css(value: float) -> str:
    """The colour of one charge for HTML and terminals.

    Example:
        >>> css(0), css(1)
        ('#ffffff', '#bf3e16')
    """
    return "#{:02x}{:02x}{:02x}".format(*diverging(value).tolist())


def ink_on(value: float) -> str:
    """Black or white, whichever is easier to read on the colour of a charge.

    Example:
        >>> ink_on(0), ink_on(1)
        ('#000000', '#ffffff')
    """
    linear = [
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4
        for part in (byte / 255 for byte in diverging(value).tolist())
    ]
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    # The contrast with black is (luminance + 0.05) / 0.05, with white 1.05 / (luminance + 0.05).
    return "#000000" if (luminance + 0.05) ** 2 > 0.05 * 1.05 else "#ffffff"


def colour_map() -> Any:
    """The same colours for matplotlib, to be used with limits of -1 and 1.

    Example:
        >>> colour_map()(0.5, bytes=True)[:3] == tuple(diverging(0))  # the middle
        True
    """
    import numpy as np
    from matplotlib.colors import ListedColormap

    # An odd number of colours, so that one of them is that of 0.
    return ListedColormap(diverging(np.linspace(-1, 1, 257)) / 255, name="charge")
