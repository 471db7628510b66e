"""Charges that models learned: against the value of a sub-unit, and in sentences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import atomsep
from atomsep.experiments.synthetic import mixtures
from atomsep.importance.colours import INK, as_charges, colour_map, css, ink_on
from atomsep.importance.figure import PARTICLES, draw_histogram
from atomsep.importance.words import Word, visible
from atomsep.report.style import CLASSES, COLUMN, GREEN, PAGE

LETTER, LINE = 0.602 * 7 / 72, 0.17
"""Width of a letter of DejaVu Sans Mono at 7 points, and height of a line, in inches."""


def charge_by_value(models: Sequence[mixtures.MixtureClassifier], layer: str = "embed") -> Figure:
    """The charge that each model trained with atom modeling gives to a sub-unit of value x."""
    values = torch.linspace(-3, 3, 301)
    figure = Figure(figsize=(COLUMN, 2.3), layout="constrained")
    axes = figure.subplots()
    behind = axes.twinx()  # the two distributions that sub-units are drawn from, faintly
    behind.set_zorder(axes.get_zorder() - 1)
    axes.patch.set_visible(False)
    for name, centre in (("A", mixtures.MEAN), ("B", -mixtures.MEAN)):
        density = (-((values - centre) ** 2) / (2 * mixtures.DEVIATION**2)).exp()
        behind.fill_between(values.numpy(), density.numpy(), color=CLASSES[name], alpha=0.16, lw=0)
        behind.text(centre, 1.04, name, color=CLASSES[name], ha="center", weight="bold", size=8)
    behind.set_ylim(0, 2.4)
    behind.set_axis_off()
    for model in models:
        with atomsep.attach(model, layer) as attachment, torch.no_grad():
            model(values.unsqueeze(1).expand(-1, mixtures.SUB_UNITS))
            charge = attachment.importance[:, 0]
        axes.plot(values.numpy(), charge.numpy(), color=GREEN, lw=1, alpha=0.75)
    axes.lines[-1].set_label(f"a model (n = {len(models)})")  # one entry for all of them
    axes.axhline(0, color=INK, lw=0.6)
    axes.set(xlim=(-3, 3), ylim=(-1.08, 1.08), xlabel="value x of the sub-unit", ylabel="charge q")
    axes.set_yticks([*PARTICLES], [*PARTICLES.values()])
    axes.legend(loc="lower right", bbox_to_anchor=(1, 1), borderaxespad=0)
    return figure


def sentence_figure(sentences: Sequence[Sequence[Word]]) -> Figure:
    """Sentences with words on the colours of their charges, and the histogram of all words."""
    sentences = [[replace(word, text=visible(word.text)) for word in each] for each in sentences]
    lines = [line for words in sentences for line in broken(words, int(PAGE / LETTER) - 4)]
    height = LINE * (len(lines) + 1)
    figure = Figure(figsize=(PAGE, height + 1.5), layout="constrained")
    above, below = figure.subplots(2, 1, height_ratios=[height, 1.0])
    above.set(xlim=(0, PAGE / LETTER), ylim=(len(lines) + 0.5, 0))
    above.set_axis_off()
    for number, line in enumerate(lines):
        draw_line(above, number + 0.7, line)
    draw_histogram(below, [w.charge for words in sentences for w in words if not w.special], "word")
    return figure


def token_figure(charges: Any) -> Figure:
    """The charges of tokens that form no grid, one row per sample, and the histogram of all.

    Args:
        charges: `(M, N)`.

    Example:
        >>> figure = token_figure([[-1.0, 0.0, 1.0]])
        >>> figure.axes[0].get_xlabel()
        'number of the token'
    """
    values = as_charges(charges)
    samples, tokens = values.shape
    height = min(LINE * samples, 4)
    figure = Figure(figsize=(PAGE, height + 1.9), layout="constrained")
    above, below = figure.subplots(2, 1, height_ratios=[height + 0.2, 1.0])
    edges = (0.5, tokens + 0.5, samples + 0.5, 0.5)
    above.imshow(values, colour_map(), vmin=-1, vmax=1, aspect="auto", extent=edges)
    above.set(xlabel="number of the token", ylabel="sample")
    for axis in (above.xaxis, above.yaxis):
        axis.get_major_locator().set_params(integer=True)
    draw_histogram(below, values)
    return figure


def broken(words: Sequence[Word], width: int) -> list[list[tuple[int, Word]]]:
    """A sentence as lines of at most `width` letters; each word with the column it starts at.

    Example:
        >>> words = [Word("a", 0.0, 0, 1), Word("cat", 0.0, 2, 5), Word("sat", 0.0, 6, 9)]
        >>> [[(column, word.text) for column, word in line] for line in broken(words, 6)]
        [[(0, 'a'), (2, 'cat')], [(2, 'sat')]]
    """
    lines: list[list[tuple[int, Word]]] = [[]]
    column = 0
    for word in words:
        if lines[-1] and column + len(word.text) > width:
            lines.append([])
            column = 2  # a sentence that goes on is indented
        lines[-1].append((column, word))
        column += len(word.text) + 1
    return lines


def draw_line(axes: Axes, place: float, line: Sequence[tuple[int, Word]]) -> None:
    """The words of a line; special tokens in italics."""
    for column, word in line:
        axes.text(
            *(column, place, word.text),
            family="DejaVu Sans Mono",
            fontsize=7,
            style="italic" if word.special else "normal",
            color=ink_on(word.charge),
            parse_math=False,
            bbox={"facecolor": css(word.charge), "lw": 0, "pad": 0.8},
        )
