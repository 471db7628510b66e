"""How a table is written: as Markdown, LaTeX, HTML and CSV.

People read a cell's text; programs read its values, which go into the CSV.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from atomsep.report.html import Html, element, together

Value = str | float | int | bool | None


@dataclass(frozen=True)
class Cell:
    """One field of a row.

    Attributes:
        text: what is shown.
        values: what goes into the CSV, by column.
        strong: whether the text is in bold.
    """

    text: str
    values: Mapping[str, Value] = field(default_factory=dict)
    strong: bool = False


@dataclass(frozen=True)
class Section:
    """Rows under a heading, or under none; the section's values go into each row of the CSV."""

    title: str
    rows: Sequence[tuple[Cell, ...]]
    values: Mapping[str, Value] = field(default_factory=dict)


@dataclass(frozen=True)
class Table:
    """A table.

    Attributes:
        name: name of its files, and its label in LaTeX.
        title: heading above it.
        columns: headings of the columns.
        sections: the rows.
        notes: paragraphs below it.
    """

    name: str
    title: str
    columns: tuple[str, ...]
    sections: tuple[Section, ...]
    notes: tuple[str, ...] = ()

    def markdown(self) -> str:
        """The table as Markdown.

        Example:
            >>> section = Section("Flowers", ((Cell("Atom"), Cell("59.1", strong=True)),))
            >>> print(Table("flowers", "Flowers", ("method", "%"), (section,)).markdown())
            ### Flowers
            <BLANKLINE>
            | method | % |
            |---|---|
            | *Flowers* | |
            | Atom | **59.1** |
            <BLANKLINE>
        """
        lines = [f"### {_pipes(self.title)}", "", _row(self.columns)]
        lines.append("|" + "---|" * len(self.columns))
        for section in self.sections:
            if section.title:
                lines.append(_row([f"*{section.title}*"]) + " |" * (len(self.columns) - 1))
            for row in section.rows:
                lines.append(_row(f"**{c.text}**" if c.strong else c.text for c in row))
        for note in self.notes:
            lines += ["", _pipes(note)]
        return "\n".join(lines) + "\n"

    def latex(self) -> str:
        """The table as LaTeX, which needs the package booktabs."""
        width = len(self.columns)
        lines = [
            r"\begin{table}[t]",
            r"  \centering",
            rf"  \caption{{{escape(self.title)}}}",
            rf"  \label{{tab:{self.name}}}",
            rf"  \begin{{tabular}}{{l{'r' * (width - 1)}}}",
            r"    \toprule",
            "    " + " & ".join(map(escape, self.columns)) + r" \\",
        ]
        for section in self.sections:
            title = escape(section.title)
            lines += [r"    \midrule", rf"    \multicolumn{{{width}}}{{l}}{{\emph{{{title}}}}} \\"]
            for row in section.rows:
                texts = (
                    rf"\textbf{{{escape(c.text)}}}" if c.strong else escape(c.text) for c in row
                )
                lines.append("    " + " & ".join(texts) + r" \\")
        lines += [r"    \bottomrule", r"  \end{tabular}"]
        lines += [rf"  \par\smallskip\footnotesize {escape(note)}" for note in self.notes]
        return "\n".join([*lines, r"\end{table}"]) + "\n"

    def html(self) -> Html:
        """The table as HTML, with the notes below it."""
        width = len(self.columns)
        head = element("tr", *(element("th", column, scope="col") for column in self.columns))
        bodies = []
        for section in self.sections:
            title = element("th", section.title, colspan=width, scope="rowgroup")
            rows = [element("tr", title)]
            for first, *rest in section.rows:
                name = element("th", first.text, scope="row")
                cells = (element("td", _strong(cell)) for cell in rest)
                rows.append(element("tr", name, *cells))
            bodies.append(element("tbody", *rows))
        table = element("table", element("thead", head), *bodies)
        notes = [element("p", note, class_="note") for note in self.notes]
        return together(element("div", table, class_="wide", tabindex=0), *notes)

    def csv(self) -> str:
        """The table as CSV: one line per row, numbers to ten digits, empty where there is none."""
        rows = []
        for section in self.sections:
            for row in section.rows:
                values = dict(section.values)
                for cell in row:
                    values.update(cell.values)
                rows.append({name: _plain(value) for name, value in values.items()})
        names = list(dict.fromkeys(name for row in rows for name in row))
        file = io.StringIO()
        writer = csv.DictWriter(file, names, lineterminator="\n", restval="")
        writer.writeheader()
        writer.writerows(rows)
        return file.getvalue()


LATEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"$<$",
    ">": r"$>$",
    "±": r"$\pm$",
    "×": r"$\times$",
    "−": r"$-$",
    "+": r"$+$",
    "–": "--",
    **{character: "\\" + character for character in "&%$#_{}"},
}


def escape(text: str) -> str:
    r"""Text with LaTeX's special characters escaped.

    Example:
        >>> print(escape("weight_decay: −3 ± 1 %"))
        weight\_decay: $-$3 $\pm$ 1 \%
    """
    return "".join(LATEX.get(character, character) for character in text)


def _strong(cell: Cell) -> str | Html:
    return element("strong", cell.text) if cell.strong else cell.text


def _row(texts: Iterable[str]) -> str:
    return "| " + " | ".join(map(_pipes, texts)) + " |"


def _pipes(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _plain(value: Value) -> Value:
    """A value for the CSV, which has no NaN and shows no rounding errors."""
    if value is None or value != value:
        return ""
    return round(value, 10) if isinstance(value, float) else value
