"""The tables and the figure of "Reading the maps" are those of the committed CSV files."""

from __future__ import annotations

import re
from collections import Counter
from itertools import pairwise
from statistics import fmean

import pytest

from atomsep.report.faithful import Point, Row, read_csv
from atomsep.report.faithful_page import POINTS, ROWS
from benchmarks import importance, words
from benchmarks.record import FOLDER


def test_the_page_agrees_with_the_tables() -> None:
    text = importance.PAGE.read_text()
    assert importance.render(text) == text
    shown = re.findall(r"<!-- table: (\w+) -->\n\n\S.*?<!-- end -->", text, re.DOTALL)
    assert shown == [*importance.TABLES]
    assert importance.render(text.replace("| random order |", "| another |")) == text


def test_the_areas_are_those_of_the_curves() -> None:
    rows, points = read_csv(FOLDER / ROWS, Row), read_csv(FOLDER / POINTS, Point)
    curves: dict[tuple[object, ...], list[Point]] = {}
    for point in points:
        key = (point.method, point.weight, point.seed, point.map, point.curve)
        curves.setdefault(key, []).append(point)
    checked = 0
    for row in rows:
        if row.measure in ("deletion", "insertion"):
            curve = curves[row.method, row.weight, row.seed, row.map, row.measure]
            steps = pairwise(curve)
            area = sum((b.share - a.share) * (a.mean + b.mean) / 2 for a, b in steps)
            assert row.mean == pytest.approx(area, abs=1e-4)
            checked += 1
    assert checked == len(curves) > 0
    auc = [row for row in rows if row.measure == "auc"]
    signs = {sign: [r.mean for r in auc if r.map == f"{sign} charge"] for sign in SIGNS}
    # The AUC of the opposite map is the rest.
    for positive, negative in zip(*signs.values(), strict=True):
        assert positive + negative == pytest.approx(1, abs=1e-4)


SIGNS = ("positive", "negative")


def test_words_that_decide_are_sorted_as_a_reader_would() -> None:
    function = ("the", "of", "and", "thy", "upon", "with", "is", "she")
    content = ("love", "fire", "night", "heart", "cry", "computer", "old", "run")
    assert all(map(words.is_function_word, function))
    assert not any(map(words.is_function_word, content))
    assert [word for word in ("a", "s", ",", "o", "thee", "1st") if words.is_counted(word)] == [
        *("a", "o", "thee"),
    ]


def test_the_difference_is_taken_over_occurrences() -> None:
    from atomsep.importance import Word

    def word(text: str, charge: float) -> Word:
        return Word(text, charge, 0, len(text))

    sentences = [
        [word("The", -0.5), word("cat", 0.5), word(",", 1.0)],
        [word("the", -0.3), word("of", 0.1), word("cat", 0.7), word("dog", -0.6)],
    ]
    found = words.measured(sentences, Counter(cat=7, dog=9))
    assert found["frequency"] == -1  # dog is more frequent, and more negative
    assert found["content"] == pytest.approx(fmean([0.5, 0.7, -0.6]), abs=1e-4)
    assert found["function"] == pytest.approx(fmean([-0.5, -0.3, 0.1]), abs=1e-4)
    assert found["difference"] == pytest.approx(found["content"] - found["function"], abs=1e-3)
    assert (found["content_words"], found["function_words"]) == (3, 3)
    # By the mean charge of each word: cat (twice) is above all function words, dog below.
    assert found["auc"] == pytest.approx(2 / 3, abs=1e-4)
