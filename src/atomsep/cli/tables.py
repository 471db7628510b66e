"""Tables of results: drawn on a terminal, as Markdown where the output is piped, or as files."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import compress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich import box
from rich.table import Table as Drawn
from rich.text import Text

from atomsep.cli.display import SafeConsole, make_console
from atomsep.cli.printable import printable
from atomsep.experiments.files import write_text, writing

if TYPE_CHECKING:
    from atomsep.report.markup import Section, Table

FORMATS = {"markdown": ".md", "latex": ".tex", "csv": ".csv"}
"""Formats of tables, and the endings of their files."""

FIRST_TO_GO = (
    *("other metrics", "paper's difference", "p (Wilcoxon)", "paper", "95 % interval"),
    *("p (t)", "broke down"),
)
"""Columns that are left out of a table that is too wide for the terminal, in this order."""


def write_tables(results: list[dict[str, Any]], folder: Path) -> None:
    """Write each table of results to one file per format."""
    from atomsep.report.tables import build_tables

    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    for each in build_tables(results):
        for format, ending in FORMATS.items():
            write_text(folder / f"{each.name}{ending}", getattr(each, format)())
        make_console().say(f"{each.title}: {folder / each.name}.md, .tex, .csv")


def print_tables(results: list[dict[str, Any]], format: str | None = None) -> None:
    """Print the tables of results.

    Args:
        results: of finished runs.
        format: one of `FORMATS`; by default tables are drawn on a terminal, and Markdown elsewhere.
    """
    from atomsep.report.tables import build_tables

    console, tables = make_console(), build_tables(results)
    if format is None and console.is_terminal:
        for table in tables:
            draw(console, table)
    else:
        texts = [getattr(table, format or "markdown")().rstrip() for table in tables]
        console.say("\n\n".join(texts))


def show(
    console: SafeConsole, title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]
) -> None:
    """Print a table of texts: drawn on a terminal, as Markdown elsewhere.

    Args:
        console: where to print.
        title: title of the table.
        columns: headings.
        rows: texts; those with `**` around them are bold.
    """
    if console.is_terminal:
        drawn = Drawn(*columns, title=title)
        for row in rows:
            drawn.add_row(*map(_bold, row))
        console.print(drawn)
        return
    from atomsep.report.markup import Cell, Section, Table

    section = Section("", [tuple(map(Cell, row)) for row in rows])
    console.say(Table("", title, tuple(columns), (section,)).markdown())


def _bold(text: str) -> Text:
    bare = text.removeprefix("**").removesuffix("**")
    return Text(printable(bare), "bold" if bare != text else "")


def draw(console: SafeConsole, table: Table) -> None:
    """Draw a table: one frame per section, with as many columns as the terminal has room for."""
    left_out: list[str] = []
    endless = console.options.update(width=10_000)  # a table is never measured wider than this
    for column in ("", *FIRST_TO_GO):
        if column in table.columns:
            left_out.append(column)
        sections = [_drawn(table.columns, section, left_out) for section in table.sections]
        if all(
            console.measure(each, options=endless).maximum <= console.width for each in sections
        ):
            break
    console.print(Text(printable(table.title), style="bold"))
    for section, drawn in zip(table.sections, sections, strict=True):
        console.say(section.title)
        console.print(drawn)
    for note in table.notes:
        console.print(note)
    if left_out:
        whole = "`atomsep table --format markdown` has all columns"
        console.print(f"No room for: {', '.join(left_out)}; {whole}")
    console.print()


def _drawn(columns: tuple[str, ...], section: Section, left_out: Collection[str]) -> Drawn:
    kept = [column not in left_out for column in columns]
    drawn = Drawn(box=box.SIMPLE_HEAD, pad_edge=False)
    for place, column in enumerate(compress(columns, kept)):
        drawn.add_column(column, justify="right" if place else "left", overflow="fold")
    for row in section.rows:
        cells = compress(row, kept)
        drawn.add_row(*(Text(printable(c.text), "bold" if c.strong else "") for c in cells))
    return drawn
