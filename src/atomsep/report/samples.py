"""The samples of a report: what the explorer shows, small enough to be part of the page."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from atomsep.importance.images import to_grid
from atomsep.report.embedded import png_uri
from atomsep.report.numbers import signed

if TYPE_CHECKING:
    from atomsep.experiments.atoms_file import Atoms, Token

MOST_SAMPLES = 512
"""Samples in a report; those of further runs are left out."""

STEPS = 10_000
"""A charge is sent as a whole number of these parts, in 16 bits."""


def explored(atoms: Atoms, title: str, classes: Sequence[str]) -> dict[str, Any]:
    """The samples of one run, as the explorer takes them.

    Args:
        atoms: what the run kept.
        title: experiment, method and seed.
        classes: their names; none if there are no classes.

    Returns:
        The title; the size of the grid of tokens, `[1, N]` if there is none; the charges of all
        samples; and per sample its class, the predicted one, and an image or tokens.
    """
    charges = np.asarray(atoms.charges, np.float32)
    images: list[Any] = [None] * len(charges)
    tokens: list[Any] = [None] * len(charges)
    maps = _maps(atoms, charges)
    if maps is not None:
        images, grid = list(map(data_uri, atoms.images)), maps.shape[1:]
    else:
        tokens, grid = _tokens(atoms, charges), (1, charges[0].size)
    whole = np.rint(np.nan_to_num(charges).clip(-1, 1) * STEPS).astype("<i2")
    return {
        "title": title,
        "grid": list(grid),
        "charges": base64.b64encode(whole.tobytes()).decode(),
        "samples": [
            {
                "label": _name(atoms.labels, place, classes),
                "prediction": _name(atoms.predictions, place, classes),
                "image": images[place],
                "tokens": tokens[place],
            }
            for place in range(len(charges))
        ],
    }


def _maps(atoms: Atoms, charges: Any) -> Any:
    """Charges of images as `(M, h, w)`, those of patches too; None if they are not a grid."""
    if atoms.images is None:
        return None
    try:
        return to_grid(charges, atoms.images.shape[-2:])
    except ValueError:
        return None


def _tokens(atoms: Atoms, charges: Any) -> list[Any]:
    """The tokens of every sample that is not an image: words, values, or their numbers."""
    if atoms.sentences is not None and atoms.tokens is not None:
        return list(map(pieces, atoms.sentences, atoms.tokens))
    if atoms.values is not None:
        texts = [[signed(float(value), 3) for value in sample] for sample in atoms.values]
    else:
        texts = [[str(number + 1) for number in range(each.size)] for each in charges]
    return [[[" " * (n > 0), text, False] for n, text in enumerate(each)] for each in texts]


def pieces(sentence: str, tokens: Sequence[Token]) -> list[list[Any]]:
    """Tokens as `[text before it, its text, whether it is special]`.

    A token's text is that of the sentence, so words read as they were written; if the tokenizer
    does not tell where it is, it is the tokenizer's own.

    Example:
        >>> from atomsep.experiments.atoms_file import Token
        >>> pieces("A cat", [Token("[CLS]", -1, 0, 0), Token("a", 0, 0, 1), Token("cat", 1, 2, 5)])
        [['', '[CLS]', True], ['', 'A', False], [' ', 'cat', False]]
    """
    found: list[list[Any]] = []
    end, before = 0, -1
    for token in tokens:
        if token.word < 0:
            found.append(["", token.piece, True])
        elif 0 <= token.start < token.end:
            found.append([sentence[end : token.start], sentence[token.start : token.end], False])
            end = token.end
        else:
            found.append([" " * (token.word != before), token.piece, False])
        before = token.word
    return found


def data_uri(image: Any) -> str:
    """An image `(C, H, W)` of bytes, with one or three channels, as the address of a PNG."""
    from PIL import Image

    file = io.BytesIO()
    array = np.asarray(image, np.uint8)
    shown = array[0] if len(array) == 1 else array.transpose(1, 2, 0)
    Image.fromarray(np.ascontiguousarray(shown)).save(file, "PNG", optimize=True)
    return png_uri(file.getvalue())


def _name(numbers: Any, place: int, classes: Sequence[str]) -> str | None:
    """The name of a sample's class, or its number."""
    if numbers is None:
        return None
    number = int(numbers[place])
    return str(classes[number]) if 0 <= number < len(classes) else str(number)
