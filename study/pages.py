"""The pages in which tables are filled in, and their picture."""

from __future__ import annotations

import re
from pathlib import Path

from study import forest
from study.overview import (
    broken,
    budget,
    coverage,
    distances,
    equilibrium,
    rules,
    rules_by_task,
    sampling,
    shares,
    summary,
)
from study.paper_rows import paper_rows
from study.tables import PAGES, of_task

TABLES = (
    rules,
    rules_by_task,
    shares,
    broken,
    distances,
    equilibrium,
    budget,
    summary,
    coverage,
    paper_rows,
    sampling,
)


def table(name: str) -> str:
    """A table by its name; see `study.tables`."""
    whole = {each.__name__: each for each in TABLES}
    return whole[name]() if name in whole else of_task(*name.split())


def render(text: str) -> str:
    """A page with its tables filled in."""

    def filled(match: re.Match[str]) -> str:
        return f"<!-- table: {match[1]} -->\n\n{table(match[1])}\n<!-- end -->"

    return re.sub(r"<!-- table: ([\w -]+) -->.*?<!-- end -->", filled, text, flags=re.DOTALL)


def fill() -> list[Path]:
    """Fill in all pages with tables of the study, and draw the picture; returns them."""
    pages = [page for page in PAGES if "<!-- table: " in page.read_text()]
    for page in pages:
        page.write_text(render(page.read_text()))
    return [*pages, forest.write()]
