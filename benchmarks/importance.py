"""The tables of docs/importance.md, and its figure, from committed CSV files.

    python -m benchmarks.importance --take FOLDER   # what `atomsep faithful --out FOLDER` wrote
    python -m benchmarks.importance                 # only fill in the page

Each table stands between `<!-- table: NAME -->` and `<!-- end -->`; nothing else on the page is
changed.
"""

from __future__ import annotations

import argparse
import csv
import re
import shutil
from pathlib import Path

from atomsep.report.faithful import Point, Row, markdown, over_seeds, read_csv
from atomsep.report.faithful_page import POINTS, ROWS, draw, tables
from benchmarks.record import FOLDER

DOCS = Path(__file__).parent.parent / "docs"
PAGE, FIGURE = DOCS / "importance.md", DOCS / "images" / "faithful.png"

MODELS = {
    "pretrained": "the encoder as downloaded",
    "plain": "fine-tuned, cross-entropy alone",
    "atom": "fine-tuned with atom modeling",
    "learned": "the same, with a learned charge",
}
SHOWN = 6
"""Words at each end of the scale."""


def faithful() -> str:
    """How faithful maps are, by method."""
    return tables(read_csv(FOLDER / ROWS, Row))


def read(topic: str) -> list[dict[str, str]]:
    """The rows of a CSV file."""
    with (FOLDER / f"{topic}.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def words() -> str:
    """Content words against function words, by model."""
    rows = read("words")
    columns = ["content words", "function words", "difference", "apart", "AUC by seed"]
    lines = [["model", *columns, "frequency by seed"]]
    for kind, title in MODELS.items():
        own = [row for row in rows if row["model"] == kind]
        if not own:
            continue
        numbers = {
            name: [float(row[name]) for row in own]
            for name in ("content", "function", "difference", "auc", "frequency")
        }
        apart = [max(value, 1 - value) for value in numbers["auc"]]
        shown = [numbers["content"], numbers["function"], numbers["difference"], apart]
        cells = [str(over_seeds(values, [float("nan")])) for values in shown]
        cells.append(", ".join(f"{value:.2f}" for value in numbers["auc"]))
        cells.append(", ".join(f"{value:+.2f}" for value in numbers["frequency"]))
        lines.append([title, *cells])
    counts = f"{rows[0]['content_words']} content and {rows[0]['function_words']} function words"
    return f"{markdown(lines)}\n\nOver {counts} in {rows[0]['verses']} verses.\n"


def by_word() -> str:
    """The most positive and the most negative words by model, function words in italics."""
    lines = [["model", "seed", "most positive", "most negative"]]
    models: dict[tuple[str, str], list[dict[str, str]]] = {}
    for row in read("words_by_word"):
        if row["model"] != "plain":
            models.setdefault((row["model"], row["seed"]), []).append(row)
    for (kind, seed), own in sorted(
        models.items(), key=lambda item: list(MODELS).index(item[0][0])
    ):
        order = sorted(own, key=lambda row: (-float(row["mean"]), row["word"]))
        ends = (order[:SHOWN], order[::-1][:SHOWN])
        lines.append([MODELS[kind], seed, *(", ".join(map(shown_word, end)) for end in ends)])
    return markdown(lines) + "\n"


def shown_word(row: dict[str, str]) -> str:
    """A word with its mean charge and how often it occurs, in italics if it is a function word."""
    word = f"*{row['word']}*" if row["function"] == "1" else row["word"]
    return f"{word} {float(row['mean']):+.2f} ({row['count']})"


TABLES = {"faithful": faithful, "words": words, "by_word": by_word}


def render(text: str) -> str:
    """A page with its tables filled in."""

    def filled(match: re.Match[str]) -> str:
        return f"<!-- table: {match[1]} -->\n\n{TABLES[match[1]]()}\n<!-- end -->"

    return re.sub(r"<!-- table: (\w+) -->.*?<!-- end -->", filled, text, flags=re.DOTALL)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--take", type=Path, help="a folder of `atomsep faithful`")
    options = parser.parse_args()
    if options.take is not None:
        for name in (ROWS, POINTS):
            shutil.copyfile(options.take / name, FOLDER / name)
        draw(FIGURE, read_csv(FOLDER / ROWS, Row), read_csv(FOLDER / POINTS, Point))
    PAGE.write_text(render(PAGE.read_text()))
    print(f"wrote {PAGE}")


if __name__ == "__main__":
    main()
