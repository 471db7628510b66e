"""How figures look: sizes of a paper's columns, colours, and the names of methods."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from atomsep.importance.colours import INK
from atomsep.methods import ATOM_MODELING, METHODS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLUMN, PAGE = 3.25, 6.75
"""Widths of a column and of a page of two columns, in inches."""

FAINT = "#d5d8e2"
CLASSES = {"A": "#7d4fb5", "B": "#a67c00"}
"""Colours of the mixtures' classes, which are not those of charges."""

GREY, BLUE, GREEN, PALE = "#8a90a2", "#5a7fb8", "#12877a", "#7fbdb4"

STYLE: dict[Any, Any] = {
    "figure.dpi": 200,
    "savefig.dpi": 300,
    "pdf.fonttype": 42,  # text stays text
    "font.size": 7,
    "axes.titlesize": 7.5,
    "axes.titlelocation": "left",
    "axes.linewidth": 0.6,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "legend.fontsize": 6.5,
    **dict.fromkeys(("axes.edgecolor", "axes.labelcolor", "axes.titlecolor"), INK),
    **dict.fromkeys(("text.color", "xtick.color", "ytick.color"), INK),
}


@dataclass(frozen=True)
class Drawing:
    """A figure with its caption.

    Attributes:
        name: name of its files, without an ending.
        figure: the figure.
        caption: data set, seeds, and what to see.
    """

    name: str
    figure: Figure
    caption: str


def colour_of(method: str) -> str:
    """Grey for the plain method, green for atom modeling, paler without constraints."""
    return {"plain": GREY, "atom": GREEN}.get(method, PALE if method in ATOM_MODELING else BLUE)


def label_of(method: str, plain: str = "Cross-Entropy") -> str:
    """A method's name under a figure, on one or two lines.

    Args:
        method: its name.
        plain: what the experiment calls the method "plain".
    """
    if method == "plain":
        return "cross-\nentropy" if plain == "Cross-Entropy" else plain
    entry = METHODS.get(method)
    return method if entry is None else entry.label or entry.title


def on_one_line(label: str) -> str:
    r"""A label without its line break.

    Example:
        >>> on_one_line("cross-\nentropy"), on_one_line("atom\nmodeling")
        ('cross-entropy', 'atom modeling')
    """
    return label.replace("-\n", "-").replace("\n", " ")
