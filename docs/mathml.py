"""Convert formulas to MathML while the site is built, so that pages need no script to show them.

This is a hook for MkDocs. `pymdownx.arithmatex` marks the formulas of pages and docstrings, and
each is converted here. The build fails if a formula cannot be converted, or if one was not marked
and would show as raw LaTeX.
"""

from __future__ import annotations

import html
import re
import unicodedata
from typing import Any
from xml.etree import ElementTree

from latex2mathml.converter import convert
from mkdocs.exceptions import PluginError

_MARKED = re.compile(
    r'<(?P<tag>span|div) class="arithmatex">\\[(\[](?P<latex>.*?)\\[)\]]</(?P=tag)>', re.DOTALL
)
_CODE = re.compile(r"<(pre|code|math)\b.*?</\1>", re.DOTALL)
_MISSED = re.compile(r"arithmatex|\$\$|\\(frac|tfrac|sum|lVert|tilde)\b")
_INSTEAD = {"{aligned}": "{align*}", r"\Big(": r"\left(", r"\Big)": r"\right)"}
_CLOSE = {")", "]", "‖", "|", "∣", "′"}
_ALPHABETS = {"script": "SCRIPT", "double-struck": "DOUBLE-STRUCK"}


def to_mathml(latex: str, *, block: bool, where: str) -> str:
    """One formula as MathML.

    Raises:
        PluginError: the formula does not parse, or contains something without MathML.
    """
    latex = latex.strip()
    known = latex
    for word, instead in _INSTEAD.items():
        known = known.replace(word, instead)
    try:
        source = convert(known, display="block" if block else "")
        tree = ElementTree.fromstring(source)
    except Exception as error:
        raise PluginError(f"{where}: cannot parse the formula {latex!r}: {error!r}") from error
    for element in tree.iter():
        element.tag = element.tag.rsplit("}", 1)[-1]
        if element.tag == "mi" and re.fullmatch(r"[{}&]|\\.*", element.text or ""):
            raise PluginError(f"{where}: {element.text!r} in the formula {latex!r} has no MathML")
    for element in tree.iter():
        _for_browsers(element)
    if not block:
        tree.attrib.pop("display")
    return ElementTree.tostring(tree, encoding="unicode", short_empty_elements=False)


def _for_browsers(element: ElementTree.Element) -> None:
    """Replace what the converter writes in older MathML by MathML Core, which browsers support."""
    alphabet = _ALPHABETS.get(element.get("mathvariant", ""))
    if alphabet and element.text:  # browsers show these only as their own Unicode characters
        del element.attrib["mathvariant"]
        element.text = "".join(_letter(alphabet, letter) for letter in element.text)
    if "columnalign" in element.attrib:
        element.set("style", f"text-align: {element.attrib.pop('columnalign')}")
    if element.tag == "mover" and element[-1].text == "~":
        element.set("accent", "true")
    if element.tag == "msup" and element[-1].text == "′":  # the character is raised already
        element.tag, element[-1].tag = "mrow", "mo"
    before: ElementTree.Element | None = None
    for child in element:
        sign = child.text or "" if child.tag == "mo" else ""
        if sign in {"∞", "∂"}:
            child.tag, child.attrib = "mi", {"mathvariant": "normal"}
        elif sign in {"‖", "|", "∣", "/", "′"}:
            child.attrib |= {"stretchy": "false", "lspace": "0", "rspace": "0"}
        elif sign == "−" and (before is None or (before.tag == "mo" and before.text not in _CLOSE)):
            child.attrib |= {"form": "prefix", "lspace": "0", "rspace": "0"}
        elif sign.isalpha():  # a function name: no space before its bracket
            child.set("rspace", "0")
        before = child


def _letter(alphabet: str, letter: str) -> str:
    case = "CAPITAL" if letter.isupper() else "SMALL"
    for prefix in ("", "MATHEMATICAL "):
        try:
            return unicodedata.lookup(f"{prefix}{alphabet} {case} {letter}")
        except KeyError:
            continue
    return letter


def on_page_content(content: str, page: Any, **_: Any) -> str:
    """Replace every marked formula of a page, including those from docstrings."""
    where = page.file.src_uri

    def replace(match: re.Match[str]) -> str:
        tag = match["tag"]
        mathml = to_mathml(html.unescape(match["latex"]), block=tag == "div", where=where)
        # Keep the letters of formulas out of the search index.
        return f'<{tag} class="formula" data-search-exclude>{mathml}</{tag}>'

    content = _MARKED.sub(replace, content)
    missed = _MISSED.search(_CODE.sub("", content))
    if missed:
        raise PluginError(f"{where}: a formula was not converted: {missed.group()!r} is left")
    return content
