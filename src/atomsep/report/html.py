"""HTML and SVG elements, in which text stays text."""

from __future__ import annotations

import json
from html import escape
from typing import Any

VOID = ("br", "img", "meta")
"""Elements that have no end tag."""


class Html(str):
    """Text that is HTML already; every other text is escaped."""

    __slots__ = ()


def element(name: str, *children: str | Html, **attributes: str | float | None) -> Html:
    """An element with its children and attributes.

    Args:
        name: its tag.
        *children: elements, or text.
        **attributes: an underscore at the end is dropped, others become hyphens. None leaves an
            attribute out.

    Example:
        >>> print(element("p", "1 < 2, ", element("b", "yes"), class_="note"))
        <p class="note">1 &lt; 2, <b>yes</b></p>
    """
    words = [name]
    for key, value in attributes.items():
        if value is not None:
            text = _number(value) if isinstance(value, float) else str(value)
            words.append(f'{key.rstrip("_").replace("_", "-")}="{escape(text)}"')
    start = f"<{' '.join(words)}>"
    return Html(start if name in VOID else f"{start}{together(*children)}</{name}>")


def together(*children: str | Html) -> Html:
    """Elements and text, one after the other."""
    return Html("".join(c if isinstance(c, Html) else escape(c) for c in children))


def embedded_json(value: Any) -> Html:
    r"""JSON for the inside of a script element, which no text within can end.

    Example:
        >>> print(embedded_json(["</script>"]))
        ["\u003c/script\u003e"]
    """
    text = json.dumps(value, separators=(",", ":"))  # ASCII alone
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Html(text)


def _number(value: float) -> str:
    """A coordinate, to a hundredth of a pixel."""
    return f"{value:.2f}".rstrip("0").rstrip(".")
