"""Text from outside, made safe to print on a terminal."""

from __future__ import annotations

import unicodedata


def printable(text: str) -> str:
    r"""Text in which every character that could control a terminal is written as an escape.

    File names, column names, classes and results of others may contain sequences that colour or
    clear the screen, or change its title. Line breaks stay.

    Example:
        >>> print(printable("evil\x1b[31m.csv"))
        evil\x1b[31m.csv
    """
    return "".join(map(_escaped, text))


def _escaped(character: str) -> str:
    # C: control and format characters, lone surrogates; Zl, Zp: line and paragraph separators.
    kind = unicodedata.category(character)
    if character != "\n" and (kind[0] == "C" or kind in ("Zl", "Zp")):
        return character.encode("unicode_escape").decode()
    return character
