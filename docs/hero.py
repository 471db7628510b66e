"""Draw the picture of the front page, wide and narrow: `python docs/hero.py`."""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Circle, FancyArrowPatch, FancyBboxPatch, Rectangle

RED, GREY, BLUE, INK, FAINT = "#c8402f", "#a4a9b5", "#2f4fa8", "#1f2743", "#c9cddb"
COLOURS = {1: RED, 0: GREY, -1: BLUE}
SIGNS = {1: "+", 0: "", -1: "−"}
CHARGES = np.array([[0, 1, -1], [1, 0, -1], [-1, 1, 0]])


def particle(axes: Axes, x: float, y: float, charge: int, size: float) -> None:
    """One token as a proton, a neutron or an electron."""
    axes.add_patch(Circle((x, y), size, fc=COLOURS[charge], ec="white", lw=1.2, zorder=3))
    axes.text(
        *(x, y - 0.05 * size, SIGNS[charge]),
        ha="center", va="center", color="white", fontsize=120 * size, weight="bold", zorder=4,
    )  # fmt: skip


def atom(axes: Axes, x: float, y: float, orbit: float, phase: float, size: float) -> None:
    """Protons and neutrons in the nucleus, three electrons around it."""
    axes.add_patch(Circle((x, y), orbit, fill=False, ec=FAINT, lw=1.3, ls=(0, (4, 3))))
    particle(axes, x, y, 0, size)
    for index in range(6):
        angle, radius = index * np.pi / 3 + phase / 2, 1.35 * size
        particle(
            axes,
            x + radius * np.cos(angle),
            y + radius * np.sin(angle),
            (index + 1) % 2,
            0.92 * size,
        )
    for index in range(3):
        angle = phase + index * 2 * np.pi / 3
        particle(axes, x + orbit * np.cos(angle), y + orbit * np.sin(angle), -1, 0.8 * size)


def arrow(
    axes: Axes, start: tuple[float, float], end: tuple[float, float], **style: object
) -> None:
    """An arrow in the ink of the text."""
    given = {"arrowstyle": "-|>", "mutation_scale": 12, "color": INK, "lw": 1.5, **style}
    axes.add_patch(FancyArrowPatch(start, end, shrinkA=0, shrinkB=0, **given))


def sample_as_atom(axes: Axes) -> None:
    """The tokens of a sample and the atom that they form."""
    for (row, column), charge in np.ndenumerate(CHARGES):
        corner = (0.06 + 0.24 * column, 1.16 - 0.24 * row)
        axes.add_patch(Rectangle(corner, 0.22, 0.22, fc=COLOURS[int(charge)], ec="none"))
        number = f"{SIGNS[int(charge)]}{abs(charge)}"
        axes.text(
            *(corner[0] + 0.11, corner[1] + 0.105, number),
            ha="center", va="center", color="white", fontsize=9.5,
        )  # fmt: skip
    axes.text(0.41, 0.53, "tokens and their\ncharges", ha="center", va="top", color=INK, fontsize=9)
    arrow(axes, (0.86, 1.03), (1.1, 1.03))
    x, y, orbit = 1.86, 1.03, 0.6
    atom(axes, x, y, orbit, np.pi / 2, 0.115)
    edge = (x - orbit * np.cos(0.5), y - orbit * np.sin(0.5))
    axes.plot([x, edge[0]], [y, edge[1]], color=INK, lw=1.1, zorder=0)
    axes.text(x - 0.33, y - 0.23, "$r$", color=INK, fontsize=11, ha="center", va="top")
    axes.text(x, 0.3, "nucleus and electrons", ha="center", va="top", color=INK, fontsize=9)
    words = {
        1: "proton: tells samples apart, carries meaning",
        0: "neutron: carries meaning",
        -1: "electron: tells samples apart",
    }
    for line, (charge, text) in enumerate(words.items()):
        particle(axes, 0.13, -0.06 - 0.19 * line, charge, 0.075)
        axes.text(0.27, -0.07 - 0.19 * line, text, va="center", color=INK, fontsize=8.8)
    axes.set(xlim=(0, 2.6), ylim=(-0.6, 1.8), aspect="equal")


def two_samples(axes: Axes) -> None:
    """Two samples, the distance between their nuclei, and how they repel each other."""
    first, second, y = 0.68, 1.92, 0.87
    for x, phase in ((first, np.pi / 2), (second, np.pi / 6)):
        atom(axes, x, y, 0.45, phase, 0.1)
    arrow(axes, (0.13, y), (-0.2, y), color=RED, lw=2.6, mutation_scale=18)
    arrow(axes, (2.47, y), (2.8, y), color=RED, lw=2.6, mutation_scale=18)
    arrow(axes, (first, y - 0.66), (second, y - 0.66), arrowstyle="<|-|>")
    for x in (first, second):
        axes.plot([x, x], [y - 0.78, y - 0.2], color=FAINT, lw=1, zorder=0)
    axes.text(1.3, y - 0.72, "$d_{AB}$", ha="center", va="top", color=INK, fontsize=12)
    for x, name in ((first, "A"), (second, "B")):
        axes.text(x, y + 0.62, f"sample {name}", ha="center", color=INK, fontsize=9)
    axes.text(
        *(1.3, -0.27, "all tokens, all pairs, in closed form"),
        ha="center", color=INK, fontsize=9,
    )  # fmt: skip
    axes.set(xlim=(-0.25, 2.85), ylim=(-0.6, 1.8), aspect="equal")


def energy_curves(axes: Axes) -> None:
    """E(d) = c/d - kc/(d + r) for several k, with its minimum where there is one."""
    d = np.linspace(0.1, 5, 600)
    colours = mpl.colormaps["plasma"](np.linspace(0.08, 0.78, 4))
    for k, colour in zip((0.5, 1, 2, 4), colours, strict=True):
        name = f"$k = {k:g}$" + (", neutral samples" if k == 1 else "")
        axes.plot(d, 1 / d - k / (d + 1), color=colour, lw=2, label=name)
        if k > 1:
            rest = 1 / (np.sqrt(k) - 1)
            axes.plot(
                rest, 1 / rest - k / (rest + 1), "o", color=colour, ms=7, mec="white", zorder=5
            )
    axes.annotate(
        *("equilibrium", (1, -1.03)),
        xytext=(1.55, -1.28), fontsize=9, color=INK, va="center",
        arrowprops={"arrowstyle": "-", "color": INK, "lw": 0.8},
    )  # fmt: skip
    axes.axhline(0, color=FAINT, lw=1, zorder=0)
    axes.set(xlim=(0, 5), ylim=(-1.5, 2.6))
    axes.set_xlabel("distance $d_{AB}$ between nuclei, in radii", color=INK, fontsize=9.5)
    axes.set_ylabel("energy $E_{AB}$", color=INK, fontsize=9.5)
    axes.tick_params(colors=INK, labelsize=8.5)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(INK)
    axes.legend(frameon=False, fontsize=9, labelcolor=INK, loc="upper right")
    axes.text(4.94, 0.86, "$k$: opposite / like charges", ha="right", color=INK, fontsize=8.5)


PANELS = {
    "A sample is read as an atom": sample_as_atom,
    "Neutral samples push apart": two_samples,
    "Their structure decides how far": energy_curves,
}
WIDE = ((0.035, 0.06, 0.30, 0.80), (0.35, 0.06, 0.31, 0.80), (0.72, 0.17, 0.245, 0.65))
NARROW = ((0.050, 0.637, 0.900, 0.319), (0.050, 0.329, 0.900, 0.279), (0.170, 0.064, 0.770, 0.252))
"""Positions of the panels: left, bottom, width and height as fractions of the figure."""


def draw(size: tuple[float, float], places: tuple[tuple[float, ...], ...]) -> Figure:
    """All panels on a white card, for light and dark pages alike."""
    figure = Figure(figsize=size, facecolor="none")
    inset = 0.135 / size[1]
    figure.add_artist(
        FancyBboxPatch(
            (0.012, inset), 0.976, 1 - 2 * inset, boxstyle="round,pad=0,rounding_size=0.012",
            fc="white", ec="#dfe2ea", lw=1, zorder=-1,
            transform=figure.transFigure, mutation_aspect=size[0] / size[1],
        )
    )  # fmt: skip
    for place, (title, paint) in zip(places, PANELS.items(), strict=True):
        left, bottom, width, height = place
        axes = figure.add_axes((left, bottom, width, height))
        paint(axes)
        if paint is not energy_curves:
            axes.axis("off")
        side_by_side = size[0] > size[1]  # then the titles share one line
        above = 0.885 if side_by_side else bottom + height + 0.11 / size[1]
        figure.text(
            *(left + width / 2, above, title), ha="center", color=INK, fontsize=13, weight="bold"
        )
    return figure


if __name__ == "__main__":
    mpl.rcParams.update(
        {"svg.hashsalt": "atomsep", "mathtext.fontset": "dejavuserif", "font.family": "DejaVu Sans"}
    )
    folder = Path(__file__).parent / "images"
    for name, picture in {
        "hero.svg": draw((13, 4.5), WIDE),
        "hero-narrow.svg": draw((4.6, 11.3), NARROW),
    }.items():
        picture.savefig(folder / name, metadata={"Date": None, "Creator": None}, transparent=False)
        print(f"wrote {name}")
