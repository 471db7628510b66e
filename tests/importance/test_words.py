"""Words of hand-made charges: merging, colours, escaping, means."""

from __future__ import annotations

import io
from html.parser import HTMLParser
from typing import Any

import pytest
from rich.console import Console
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from torch import nn
from transformers import PreTrainedTokenizerFast

from atomsep import AtomLoss
from atomsep.importance.colours import css, ink_on
from atomsep.importance.words import (
    Word,
    charge_by_word,
    merge_words,
    to_html,
    to_page,
    to_terminal,
    tokens_of,
)

SENTENCE = "Unhappily, the cats' naps end."


def fast(tokenizer: Tokenizer, *, special: bool = True) -> PreTrainedTokenizerFast:
    if special:
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 1)]
        )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>")


def wordpiece() -> Any:
    pieces = ["<s>", "</s>", "un", "##happi", "##ly", ",", "the", "cat", "##s", "'", "nap", "end"]
    words = {piece: number for number, piece in enumerate([*pieces, ".", "[UNK]"])}
    tokenizer = Tokenizer(models.WordPiece(words, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return fast(tokenizer)


def byte_pairs(text: str = SENTENCE) -> Any:
    """Byte-level BPE without merges: one piece per byte, "Ġ" for a space."""
    split = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = {piece: number for number, piece in enumerate(["<s>", "</s>", *alphabet])}
    tokenizer = Tokenizer(models.BPE(words, []))
    tokenizer.pre_tokenizer, tokenizer.decoder = split, decoders.ByteLevel()
    return fast(tokenizer)


def sentencepiece(*, split: bool) -> Any:
    """Unigram pieces with "▁"; without `split` a sentence is one word to it, as for Llama."""
    pieces = ["<s>", "</s>", "▁Un", "happily", ",", "▁the", "▁cat", "s", "'", "▁", "nap", "▁end"]
    scored = [(piece, -1.0) for piece in [*pieces, "."]]
    letters = [(letter, -10.0) for letter in sorted(set(SENTENCE) - {" "})]
    known = {piece for piece, _ in scored}
    tokenizer = Tokenizer(models.Unigram(scored + [p for p in letters if p[0] not in known], 0))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(split=split)
    return fast(tokenizer)


PUNCTUATED = ["Unhappily", ",", "the", "cats", "'", "naps", "end", "."]
SPACED = ["Unhappily,", "the", "cats'", "naps", "end."]


@pytest.mark.parametrize(
    ("tokenizer", "expected"),
    [
        (wordpiece(), PUNCTUATED),
        (byte_pairs(), PUNCTUATED),
        (sentencepiece(split=True), SPACED),
        (sentencepiece(split=False), SPACED),
    ],
    ids=["wordpiece", "byte-level BPE", "sentencepiece", "sentencepiece without words"],
)
def test_pieces_become_the_words_of_the_sentence(tokenizer: Any, expected: list[str]) -> None:
    tokens = tokens_of(tokenizer, SENTENCE)
    assert [token[1] for token in (tokens[0], tokens[-1])] == [-1, -1]
    charges = [number / 100 for number in range(1, len(tokens) + 1)] + [0, 0, 0]  # padding
    words = merge_words(SENTENCE, tokens, charges)
    assert [word.text for word in words if not word.special] == expected
    assert [word.text for word in words if word.special] == ["<s>", "</s>"]
    assert sum(word.pieces for word in words) == len(tokens)
    number = 0
    for word in words:  # each has the mean of its own pieces, in order
        own = charges[number : number + word.pieces]
        assert word.charge == pytest.approx(sum(own) / len(own), abs=1e-6)
        number += word.pieces
        if not word.special:
            assert SENTENCE[word.start : word.end] == word.text


def test_pieces_of_one_character_stay_one_word() -> None:
    """A byte-level tokenizer cuts an emoji into bytes, all with the same place."""
    sentence = "so 🙂 é"
    tokens = tokens_of(byte_pairs(), sentence)
    words = merge_words(sentence, tokens, [0.5] * len(tokens))
    assert [word.text for word in words if not word.special] == ["so", "🙂", "é"]


def test_words_whose_places_are_not_known_have_the_text_of_their_pieces() -> None:
    tokens = [("[CLS]", -1, -1, -1), ("un", 0, -1, -1), ("##seen", 0, -1, -1), ("▁cat", 1, -1, -1)]
    words = merge_words("Unseen cat", tokens, [0, 1, 0, -1])
    assert [(word.text, word.charge) for word in words] == [
        ("[CLS]", 0),
        ("unseen", 0.5),
        ("cat", -1),
    ]
    assert to_terminal("Unseen cat", words).plain.split() == ["[CLS]", "unseen", "cat"]


def test_a_cut_sentence_shows_what_was_cut() -> None:
    tokens = tokens_of(wordpiece(), SENTENCE, max_length=6)
    words = merge_words(SENTENCE, tokens, [1.0] * 6)
    assert [word.text for word in words] == ["<s>", "Unhappily", ",", "</s>"]
    assert to_html(SENTENCE, words).endswith(
        '<span style="opacity:.5"> the cats&#x27; naps end.</span>'
    )


TWO = [("a", 0, 0, 1), ("b", 1, 2, 3)]


@pytest.mark.parametrize(
    "charges", [[0.5, -0.5, 0, 0, 0], [0, 0, 0, 0.5, -0.5], [0, 0.5, -0.5], [0.5, -0.5]]
)
def test_padding_on_either_side_is_ignored(charges: list[float]) -> None:
    assert [word.charge for word in merge_words("a b", TWO, charges)] == [0.5, -0.5]


def test_charges_that_are_all_0_need_no_side() -> None:
    assert [word.charge for word in merge_words("a b", TWO, [0, 0, 0, 0])] == [0, 0]


@pytest.mark.parametrize(
    ("charges", "zeros"), [([0, 0.5, 0], "are 0"), ([0.1, 0.5, -0.5], "one that is not 0")]
)
def test_padding_on_an_unknown_side_is_refused(charges: list[float], zeros: str) -> None:
    with pytest.raises(ValueError, match=rf"for 2 tokens, .* {zeros}.*attention_mask.bool\(\)"):
        merge_words("a b", TWO, charges)


def test_left_padding_of_a_tokenizer_and_a_model() -> None:
    """The charges of a padded sentence are those of the sentence alone."""
    tokenizer = wordpiece()
    tokenizer.padding_side, tokenizer.pad_token = "left", "</s>"
    sentences = ["the cat", SENTENCE]
    batch = tokenizer(sentences, padding=True, return_tensors="pt")
    embedding = nn.Embedding(len(tokenizer), 3)
    mask = batch["attention_mask"]
    charges = AtomLoss().importance(embedding(batch["input_ids"]).detach(), mask)
    for row, sentence in enumerate(sentences):
        tokens = tokens_of(tokenizer, sentence)
        alone = AtomLoss().importance(
            embedding(tokenizer(sentence, return_tensors="pt")["input_ids"]).detach()
        )
        expected = merge_words(sentence, tokens, alone[0])
        assert merge_words(sentence, tokens, charges[row]) == expected
        assert any(word.charge for word in expected)


def test_refusals() -> None:
    with pytest.raises(ValueError, match="there are 2 tokens, but only 1 charges"):
        merge_words("a b", [("a", 0, 0, 1), ("b", 1, 2, 3)], [0.5])
    with pytest.raises(ValueError, match="object does not tell where its tokens are"):
        tokens_of(object(), "a")


class Reader(HTMLParser):
    """What a browser makes of HTML: texts, tags, and the attributes of spans."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.tags: list[str] = []
        self.spans: list[dict[str, str | None]] = []
        self.feed(source)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag == "span":
            self.spans.append(dict(attrs))

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def test_markup_in_a_sentence_stays_text() -> None:
    sentence = 'a <script>alert("1")</script> & b'
    words = [Word(text, 0.5, *place) for text, place in (("a", (0, 1)), (sentence[2:29], (2, 29)))]
    words.insert(0, Word("<pad>", -1.0, 0, 0, special=True))
    read = Reader(to_html(sentence, words))
    assert set(read.tags) == {"span"}
    assert "".join(read.texts) == "<pad>" + sentence
    page = Reader(to_page("<b>title", [("<i>heading", to_html(sentence, words))]))
    assert not {"script", "b", "i"} & set(page.tags)
    assert {"<b>title", "<i>heading"} <= set(page.texts)


@pytest.mark.parametrize("charge", [-1.0, 0.0, 1.0])
def test_words_stand_on_the_colour_of_their_charge(charge: float) -> None:
    [span] = Reader(to_html("cat", [Word("cat", charge, 0, 3)])).spans
    assert span["style"] == f"background:{css(charge)};color:{ink_on(charge)}"
    assert span["title"] == f"{charge:+.2f}"
    [part] = to_terminal("cat", [Word("cat", charge, 0, 3)]).spans
    assert part.style == f"{ink_on(charge)} on {css(charge)}"


def test_the_terminal_gets_colours_and_no_commands() -> None:
    sentence = "a \x1b[2Jcat\u202e."
    words = [Word("<s>", 0.0, 0, 0, special=True), Word("\x1b[2Jcat\u202e", 1.0, 2, 10)]
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, color_system="truecolor", width=80)
    console.print(to_terminal(sentence, words))
    printed = file.getvalue()
    assert "\x1b[2J" not in printed
    assert "\\x1b[2Jcat\\u202e" in printed
    assert "48;2;191;62;22m" in printed
    plain = to_terminal(sentence, words, numbers=True).plain
    assert plain == "<s>(+0.00) a \\x1b[2Jcat\\u202e(+1.00)."


def test_means_over_a_corpus_have_counts() -> None:
    def sentence(*pairs: tuple[str, float]) -> list[Word]:
        return [Word(text, charge, 0, 0, special=text == "[CLS]") for text, charge in pairs]

    corpus = [
        sentence(("[CLS]", 1.0), ("The", -0.5), ("cat", 1.0), (".", 0.0)),
        sentence(("[CLS]", 1.0), ("the", -1.0), ('"Cat!"', 0.5), (".", 0.5)),
        sentence(("STRASSE", 0.1), ("straße", 0.3)),
    ]
    rows = {row.word: (row.mean, row.count) for row in charge_by_word(corpus)}
    assert rows == {
        "cat": (0.75, 2),
        ".": (0.25, 2),
        "the": (-0.75, 2),
        "strasse": (pytest.approx(0.2), 2),
    }
    [first, *_] = charge_by_word(corpus)
    assert first.deviation == pytest.approx(0.125**0.5)
    assert charge_by_word(corpus, least=3) == []
