"""The committed table: one row per model, layer and padding."""

from __future__ import annotations

import csv
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from benchmarks.zoo.cases import Case

PATH = Path(__file__).parent.parent / "results" / "zoo.csv"

CHOSEN = PATH.with_name("zoo_chosen.csv")
"""How many models of each library the rule chooses."""

COLUMNS = (
    *("library", "version", "torch", "family", "model", "place", "padding", "layer", "kind"),
    *("shape", "outcome", "error", "importance", "message"),
)


def read() -> list[dict[str, str]]:
    """All rows."""
    if not PATH.exists():
        return []
    with PATH.open(newline="") as file:
        return list(csv.DictReader(file))


def read_chosen() -> int:
    """How many models the rule chooses."""
    with CHOSEN.open(newline="") as file:
        return sum(int(row["models"]) for row in csv.DictReader(file))


def write_chosen(cases: list[Case]) -> None:
    """Keep how many models the rule chooses."""
    counts = Counter(case.library for case in cases)
    with CHOSEN.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("library", "models"))
        writer.writerows(sorted(counts.items()))


def replace(case: Case, rows: list[dict[str, str]]) -> None:
    """Put the rows of a model into the table, in place of its earlier ones."""
    kept = [r for r in read() if (r["library"], r["model"]) != (case.library, case.model)]
    everything = sorted(
        [*kept, *rows], key=lambda row: (row["library"], row["family"], row["model"])
    )
    part = PATH.with_suffix(".part")
    with part.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, restval="")
        writer.writeheader()
        writer.writerows(everything)
    part.replace(PATH)
