"""How wide the networks are at each resolution."""

from __future__ import annotations

from atomsep.experiments.errors import ExperimentError

LOWEST = 4
"""Side of the constant that generation starts from, and of the last hidden layer that judges."""

HEAD = 32
"""Features of an attention head, as far as there are at least four heads."""


def features_at(side: int, width: int = 512, multiplier: int = 2) -> int:
    """Features at a resolution: the full width up to 32 px, then half as many per doubling.

    Args:
        side: height and width in pixels.
        width: features at up to 32 px.
        multiplier: factor of the features at 64 px and more.

    Example:
        >>> [features_at(side) for side in (4, 32, 64, 128, 256)]
        [512, 512, 512, 256, 128]
    """
    return width if side <= 32 else width * multiplier * 32 // side


def heads_of(features: int) -> int:
    """The number of attention heads, half of which see shifted windows.

    Raises:
        ExperimentError: the features cannot be divided among them.

    Example:
        >>> heads_of(512), heads_of(128), heads_of(64)
        (16, 4, 4)
    """
    heads = max(features // HEAD, 4)
    if features % (2 * heads) or heads % 2:
        raise ExperimentError(
            f"{features} features cannot be divided among attention heads; choose a width that "
            f"gives each resolution a multiple of 64, or of 8 below 128"
        )
    return heads


def sides_up_to(size: int) -> list[int]:
    """The resolutions of a generator.

    Example:
        >>> sides_up_to(64)
        [4, 8, 16, 32, 64]
    """
    sides = [LOWEST]
    while sides[-1] < size:
        sides.append(2 * sides[-1])
    return sides
