"""The tables about several processes are those of the model and of the committed CSV files."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from benchmarks import ranks_scale
from benchmarks.record import FOLDER

DOCS = Path(__file__).parents[1] / "docs"


def table(head: str) -> list[str]:
    """The rows of the one table of the documentation that starts like this."""
    pages = [page.read_text() for page in sorted(DOCS.glob("*.md"))]
    [after] = [page.partition(f"\n{head}")[2] for page in pages if f"\n{head}" in page]
    return after.partition("\n\n")[0].splitlines()[2:]


def newest(topic: str, key: str) -> dict[str, dict[str, str]]:
    """The last row of each."""
    with open(FOLDER / f"{topic}.csv", newline="") as file:
        return {row[key]: row for row in csv.DictReader(file)}


def test_the_table_of_scale_is_that_of_the_model() -> None:
    assert table("| GPUs | samples |") == [*map(ranks_scale.page_row, ranks_scale.NETWORKS)]


def test_the_model_is_the_sum_of_its_terms() -> None:
    """Worked out by hand for 64 GPUs, with 256 samples of 255 positions and 6 more numbers each."""
    found = ranks_scale.estimate(64)
    assert found["megabytes"] == pytest.approx(64 * 257 * 261 * 4 / 1e6, abs=0.05)
    assert found["exchange_ms"] == pytest.approx(0.020 + 0.063 + 17.171 / 50, abs=0.006)
    assert found["pairs_ms"] == pytest.approx(9 * 256 * 16_384 * 255 / 23.5e9, abs=0.006)
    assert found["hosts_ms"] == pytest.approx(126 * ranks_scale.HOST_HOP_US / 1e3, abs=0.006)


def test_a_step_of_the_ring_was_measured() -> None:
    row = newest("ranks_hosts", "ranks")["3"]
    assert int(row["us_per_hop"]) == ranks_scale.HOST_HOP_US


def test_the_table_of_errors_is_the_newest_that_was_measured() -> None:
    shown = {}
    for line in table("| loss | parts of 4, 4 and 4 samples |"):
        name, *cells = (cell.strip() for cell in line.strip("|").split("|"))
        shown[name.replace("`", "")] = cells
    measured = newest("ranks_exact", "loss")
    assert set(shown) == set(measured)
    for name, cells in shown.items():
        for cell, kind in zip(cells, ("equal", "uneven"), strict=True):
            value = measured[name][kind]
            assert (cell == "the processes abort") == (value == "fails")
            assert value == "fails" or f"{float(cell):.1e}" == value
