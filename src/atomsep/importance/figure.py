"""Images with their charges as a matplotlib figure, with a colour bar and a histogram."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from atomsep.importance.colours import INK, as_charges, colour_map
from atomsep.importance.images import (
    as_bytes,
    default_columns,
    gap_of,
    sample_width,
    triptychs,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BINS = 40
"""Bars of a histogram of charges from -1 to 1."""

LINE = 9
"""Height of a line of text above a sample, in points."""

PARTICLES = {-1: "−1\nelectron", 0: "0\nneutron", 1: "+1\nproton"}


def image_figure(
    images: Any,
    charges: Any,
    titles: Sequence[str] | None = None,
    *,
    columns: int | None = None,
    width: float = 6.75,
    what: str = "input",
    **where: Any,
) -> Figure:
    """Input, charges and overlay of every sample, a labelled colour bar, and a histogram.

    Save it with `figure.savefig("maps.png")` or `"maps.pdf"`.

    Args:
        images: `(M, C, H, W)`, as bytes or in [0, 1].
        charges: `(M, h, w)` or `(M, L)`.
        titles: a line of text above each sample.
        columns: samples in a row.
        width: width of the figure in inches.
        what: what the images are, if they are not the inputs of a model.
        where: `skip_tokens`, `grid` and `box`, as in `to_pixels`.

    Raises:
        ValueError: there are no images, or the charges are not maps of them.

    Example:
        >>> figure = image_figure([[[[0.0, 1.0]]]], [[[-1.0, 1.0]]], ["a sample"])
        >>> figure.axes[1].get_ylabel()
        'tokens, %'
    """
    from matplotlib.figure import Figure

    count, height, wide = as_bytes(images).shape[:3]
    if not count:
        raise ValueError("there are no images to draw: the batch is empty")
    columns = columns or default_columns(count, (height, wide))
    # The pixels that a line of text needs, at this width.
    line = round(columns * sample_width(wide) / width * LINE / 72)
    space = 2 * gap_of(wide) + (line if titles else 0)
    picture = triptychs(images, charges, columns=columns, space=space, **where)
    picture = picture if titles else picture[space:]  # above the first row it is for a title
    inches = width * picture.shape[0] / picture.shape[1]
    figure = Figure(figsize=(width, inches + 1.5), dpi=200, layout="constrained")
    above, below = figure.subplots(2, 1, height_ratios=[inches, 0.9], gridspec_kw={"hspace": 0.1})
    above.imshow(picture, interpolation="none")
    above.set_axis_off()
    for number, title in enumerate(titles or ()):
        row, column = divmod(number, columns)
        place = column * sample_width(wide), (row + 1) * (height + space) - height - 1
        above.text(*place, title, fontsize=6, va="bottom", color=INK, parse_math=False)
    above.set_title(f"{what} | charges | overlay", fontsize=8, loc="left", color=INK, pad=3)
    skip = where.get("skip_tokens", 0)
    values = as_charges(charges)
    draw_histogram(below, values[:, skip:] if values.ndim == 2 else values)
    return figure


def draw_histogram(axes: Axes, charges: Any, of: str = "token") -> None:
    """The share of tokens by charge, over a colour bar with the names of the particles.

    Args:
        axes: where to draw.
        charges: of any shape.
        of: what has the charges.
    """
    import numpy as np

    values = as_charges(charges).ravel()
    values = values[~np.isnan(values)]
    counts, edges = np.histogram(values, BINS, (-1, 1))
    shares = 100 * counts / max(1, len(values))
    axes.bar(edges[:-1], shares, np.diff(edges), align="edge", color=INK, alpha=0.75, lw=0)
    # The bar of colours lies below the axis, where it is the axis's own legend.
    colours = np.linspace(-1, 1, 257)[None]
    scale = axes.inset_axes((0, -0.16, 1, 0.14))
    scale.imshow(colours, cmap=colour_map(), vmin=-1, vmax=1, aspect="auto", extent=(-1, 1, 0, 1))
    scale.set_yticks([])
    scale.set_xlim(-1, 1)
    scale.set_xticks([*PARTICLES], [*PARTICLES.values()], fontsize=7, color=INK)
    scale.set_xlabel(f"charge q of a {of}", fontsize=7, color=INK)
    for side in scale.spines.values():
        side.set_linewidth(0.5)
    axes.set_xlim(-1, 1)
    axes.set_xticks([])
    axes.set_ylabel(f"{of}s, %", fontsize=7, color=INK)
    axes.tick_params(labelsize=7, colors=INK)
    axes.spines[["top", "right"]].set_visible(False)
