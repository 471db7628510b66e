"""Charges made visible: on images, in sentences, over a corpus.

NumPy, matplotlib, Pillow and Rich are imported where they are used.
"""

from atomsep.importance.colours import diverging
from atomsep.importance.figure import image_figure
from atomsep.importance.images import overlay, to_grid, to_pixels, triptychs, write_png
from atomsep.importance.words import (
    Word,
    WordCharge,
    charge_by_word,
    merge_words,
    to_html,
    to_page,
    to_terminal,
    tokens_of,
)

__all__ = [
    "Word",
    "WordCharge",
    "charge_by_word",
    "diverging",
    "image_figure",
    "merge_words",
    "overlay",
    "to_grid",
    "to_html",
    "to_page",
    "to_pixels",
    "to_terminal",
    "tokens_of",
    "triptychs",
    "write_png",
]
