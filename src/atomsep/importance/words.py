"""Charges of sentences: pieces of words merged, shown in HTML and on terminals, and averaged.

A token is `(piece, word, start, end)`: its text in the vocabulary, the number of its word or -1 for
a special token such as `[CLS]`, and its place in the sentence, in characters; a start below 0 means
that the place is not known.
"""

from __future__ import annotations

import html
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any

from atomsep.importance.colours import as_charges, css, ink_on
from atomsep.importance.padding import without_padding

if TYPE_CHECKING:
    from rich.text import Text

SPECIAL = -1
"""The number of the word that special tokens belong to."""

MARKS = "▁Ġ"
"""What sentencepiece and byte-level BPE write for the space in front of a word."""

Token = tuple[str, int, int, int]


@dataclass(frozen=True)
class Word:
    """A word of a sentence, or a special token.

    Attributes:
        text: as the sentence has it; the name of a special token.
        charge: mean over its pieces.
        start: first character in the sentence; -1 if it is not known.
        end: character after the last.
        special: whether it is a special token, which is not part of the sentence.
        pieces: number of tokens.
    """

    text: str
    charge: float
    start: int
    end: int
    special: bool = False
    pieces: int = 1


def tokens_of(tokenizer: Any, sentence: str, max_length: int | None = None) -> list[Token]:
    """The tokens of a sentence, as a fast Hugging Face tokenizer makes them.

    Raises:
        ValueError: the tokenizer does not tell where its tokens are.
    """
    if not getattr(tokenizer, "is_fast", False):
        raise ValueError(
            f"{type(tokenizer).__name__} does not tell where its tokens are in the sentence; load "
            f"the fast one: AutoTokenizer.from_pretrained(..., use_fast=True)"
        )
    rows = tokenizer(
        sentence,
        truncation=max_length is not None,
        max_length=max_length,
        return_offsets_mapping=True,
        return_special_tokens_mask=True,
    )
    pieces = tokenizer.convert_ids_to_tokens(rows["input_ids"])
    marks, places = rows["special_tokens_mask"], rows["offset_mapping"]
    return [
        (piece, SPECIAL if special or word is None else word, *place)
        for piece, word, special, place in zip(pieces, rows.word_ids(), marks, places, strict=True)
    ]


def merge_words(sentence: str, tokens: Iterable[Sequence[Any]], charges: Any) -> list[Word]:
    """The words of a sentence with the mean charge of their pieces; special tokens stay apart.

    Pieces belong together if they have the same number and no white space between them. (Some
    tokenizers give one number to a whole sentence.)

    Args:
        sentence: the text.
        tokens: `(piece, word, start, end)` each.
        charges: `(L,)`; padding before or behind the tokens, whose charge is 0, is ignored.

    Raises:
        ValueError: there are fewer charges than tokens, or so many that it is not certain which
            of them are padding.

    Example:
        >>> tokens = [("[CLS]", -1, 0, 0), ("un", 0, 0, 2), ("##seen", 0, 2, 6), (".", 1, 6, 7)]
        >>> for word in merge_words("unseen.", tokens, [0.5, -1.0, 0.0, 1.0]):
        ...     print(word.text, word.charge, word.pieces)
        [CLS] 0.5 1
        unseen -0.5 2
        . 1.0 1
    """
    tokens = list(tokens)
    values = without_padding(as_charges(charges), len(tokens)).tolist()
    parts: list[list[tuple[int, float]]] = []
    for number, token in enumerate(tokens):
        joined = parts and _joined(sentence, tokens[number - 1], token)
        if joined:
            parts[-1].append((number, values[number]))
        else:
            parts.append([(number, values[number])])
    return [_word(sentence, [tokens[i] for i, _ in part], [q for _, q in part]) for part in parts]


def _joined(sentence: str, before: Sequence[Any], token: Sequence[Any]) -> bool:
    """Whether two neighbours are pieces of one word."""
    if SPECIAL in (before[1], token[1]) or before[1] != token[1]:
        return False
    end, (start, stop) = before[3], token[2:4]
    if start < 0:
        return True
    # A piece may begin with the space in front of its word.
    between = sentence[end:start] + sentence[max(start, end) : stop][:1]
    return not any(character.isspace() for character in between)


def _word(sentence: str, tokens: Sequence[Sequence[Any]], charges: Sequence[float]) -> Word:
    start, end = min(token[2] for token in tokens), max(token[3] for token in tokens)
    if tokens[0][1] == SPECIAL:
        return Word(tokens[0][0], charges[0], start, end, special=True)
    if start < 0:
        text = "".join(piece.removeprefix("##").strip(MARKS) for piece, *_ in tokens)
        return Word(text, fmean(charges), -1, -1, pieces=len(tokens))
    text = sentence[start:end]
    start += len(text) - len(text.lstrip())
    end -= len(text) - len(text.rstrip())
    # A piece without a place, such as a lone "▁", has only its own text.
    shown = text.strip() or tokens[0][0]
    return Word(shown, fmean(charges), start, max(start, end), pieces=len(tokens))


def _in_order(sentence: str, words: Iterable[Word]) -> Iterator[tuple[str, Word | None]]:
    """All texts of a sentence as they follow each other; None where no word has a charge."""
    place = 0
    for word in words:
        if word.start < 0 and not word.special:
            yield from ((word.text, word), (" ", None))
            place = len(sentence)
            continue
        if not word.special and word.start > place:
            yield sentence[place : word.start], None
        yield word.text, word
        if not word.special:
            place = max(place, word.end)
    if place < len(sentence):  # what was cut off
        yield sentence[place:], None


def to_html(sentence: str, words: Iterable[Word]) -> str:
    """A sentence as HTML: words on the colour of their charge, which a pointer shows as a number.

    All text is escaped. Special tokens have a frame, and what was cut off from a sentence that is
    too long is faint.

    Example:
        >>> to_html("<b>", [Word("<b>", 1.0, 0, 3)])
        '<span style="background:#bf3e16;color:#ffffff" title="+1.00">&lt;b&gt;</span>'
    """
    parts = []
    for text, word in _in_order(sentence, words):
        escaped = html.escape(text)
        if word is None:
            parts.append(
                escaped if text.isspace() else f'<span style="opacity:.5">{escaped}</span>'
            )
            continue
        look = f"background:{css(word.charge)};color:{ink_on(word.charge)}"
        if word.special:
            look += ";border:1px dashed #8a90a2;font-size:75%;margin:0 .25em;padding:0 .25em"
        parts.append(f'<span style="{look}" title="{word.charge:+.2f}">{escaped}</span>')
    return "".join(parts)


def to_page(title: str, sentences: Iterable[tuple[str, str]]) -> str:
    """A whole HTML page of sentences, with a legend; it needs no network.

    Args:
        title: the heading; escaped.
        sentences: pairs of a heading, which is escaped, and the HTML of a sentence.
    """
    legend = "".join(
        f'<span style="background:{css(q)};color:{ink_on(q)};padding:0 .6em">{name}</span>'
        for q, name in ((-1, "−1 electron"), (0, "0 neutron"), (1, "+1 proton"))
    )
    rows = "\n".join(
        f"<dt>{html.escape(heading)}</dt><dd>{sentence}</dd>" for heading, sentence in sentences
    )
    style = (
        "body{font:16px/2 system-ui,sans-serif;max-width:50em;margin:2em auto;padding:0 1em;"
        "color:#1f2743;background:#fff}dt{font-size:80%;color:#5b6275}dd{margin:0 0 1em}"
    )
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<meta charset="utf-8">\n'
        f'<meta name="viewport" content="width=device-width">\n'
        f"<title>{html.escape(title)}</title>\n<style>{style}</style>\n"
        f"<h1>{html.escape(title)}</h1>\n<p>Charge: {legend}</p>\n<dl>\n{rows}\n</dl>\n</html>\n"
    )


def to_terminal(sentence: str, words: Iterable[Word], *, numbers: bool = False) -> Text:
    """A sentence for Rich's console, with words on the colour of their charge.

    Characters that could control the terminal are written as escapes.

    Args:
        sentence: the text.
        words: its words.
        numbers: whether to write the charge behind each word, for terminals without colours.

    Example:
        >>> to_terminal("a cat", [Word("cat", 0.5, 2, 5)], numbers=True).plain
        'a cat(+0.50)'
    """
    from rich.text import Text

    shown = Text()
    for text, word in _in_order(sentence, words):
        if word is None:
            shown.append(visible(text), None if text.isspace() else "dim")
            continue
        look = f"{ink_on(word.charge)} on {css(word.charge)}"
        space = " " if word.special and shown.plain and not shown.plain[-1:].isspace() else ""
        shown.append(space)
        shown.append(visible(word.text), look + (" italic" if word.special else ""))
        if numbers:
            shown.append(f"({word.charge:+.2f})", "dim")
        if word.special:
            shown.append(" ")
    return shown


def visible(text: str) -> str:
    """Text without characters that control a terminal; a line break becomes a space."""
    return "".join(
        " "
        if character in "\n\t"
        else character.encode("unicode_escape").decode()
        if unicodedata.category(character)[0] == "C" or character in "\u2028\u2029"
        else character
        for character in text
    )


@dataclass(frozen=True)
class WordCharge:
    """A word over a corpus.

    Attributes:
        word: in small letters, without punctuation around it.
        mean: mean charge over its occurrences.
        deviation: standard deviation over its occurrences; NaN for one.
        count: number of occurrences.
    """

    word: str
    mean: float
    deviation: float
    count: int


def charge_by_word(sentences: Iterable[Iterable[Word]], least: int = 1) -> list[WordCharge]:
    """Mean charge of every word of a corpus, the largest first; special tokens do not count.

    Args:
        sentences: the words of each.
        least: how often a word must occur.

    Example:
        >>> first = [Word("The", -0.5, 0, 3), Word("cat.", 1.0, 4, 8)]
        >>> second = [Word("the", -1.0, 0, 3), Word("dog", 0.0, 4, 7)]
        >>> for row in charge_by_word([first, second]):
        ...     print(row.word, row.mean, row.count)
        cat 1.0 1
        dog 0.0 1
        the -0.75 2
    """
    charges: dict[str, list[float]] = {}
    for sentence in sentences:
        for word in sentence:
            if not word.special:
                charges.setdefault(_bare(word.text), []).append(word.charge)
    rows = [
        WordCharge(word, fmean(found), stdev(found) if len(found) > 1 else float("nan"), len(found))
        for word, found in charges.items()
        if len(found) >= least
    ]
    return sorted(rows, key=lambda row: (-row.mean, row.word))


def _bare(text: str) -> str:
    """A word in small letters, without punctuation around it unless it has nothing else."""
    inside = [place for place, character in enumerate(text) if character.isalnum()]
    bare = text[inside[0] : inside[-1] + 1] if inside else text
    return bare.casefold()
