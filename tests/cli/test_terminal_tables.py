"""Tables on a terminal: drawn, as wide as there is room; Markdown where the output is piped."""

from __future__ import annotations

import io
import os
import pty
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from atomsep.cli import tables
from atomsep.cli.display import SafeConsole
from atomsep.experiments.registry import EXPERIMENTS, run_key
from atomsep.report.markup import Cell, Section, Table
from atomsep.report.tables import build_tables

ESCAPES = re.compile(r"\x1b\[[0-9;]*m")


def results() -> list[dict[str, object]]:
    return [
        {
            **run_key(EXPERIMENTS["flowers"], method, seed).record(),
            "metrics": {"top1": value, "ece": 0.1},
        }
        for method, values in (("plain", (0.5, 0.51, 0.5)), ("atom", (0.55, 0.58, 0.56)))
        for seed, value in enumerate(values)
    ]


def drawn(table: Table, width: int) -> str:
    file = io.StringIO()
    plain = {"markup": False, "highlight": False}
    tables.draw(SafeConsole(file=file, width=width, force_terminal=True, **plain), table)
    return file.getvalue()


def test_a_wide_terminal_shows_every_cell() -> None:
    table = build_tables(results())[0]
    text = drawn(table, 200)
    for part in (table.title, *table.columns, *table.notes):
        assert " ".join(part.split()) in " ".join(ESCAPES.sub("", text).split())
    for row in table.sections[0].rows:
        line = " ".join(cell.text for cell in row)
        assert line in [" ".join(each.split()) for each in ESCAPES.sub("", text).splitlines()]
    assert "\x1b[1m56.33 ± 1.53\x1b[0m" in text, "the best mean is bold"
    assert "No room for" not in text


@pytest.mark.parametrize("width", [100, 80, 60])
def test_a_narrow_terminal_leaves_columns_out_and_says_which(width: int) -> None:
    table = build_tables(results())[0]
    text = ESCAPES.sub("", drawn(table, width))
    assert max(map(len, text.splitlines())) <= width
    [head] = [line for line in text.splitlines() if line.split()[:2] == ["method", "result"]]
    said = " ".join(text[text.index("No room for: ") :].split()).partition(": ")[2]
    left_out = [column for column in table.columns if column in said.partition(";")[0].split(", ")]
    assert left_out
    kept = [column for column in table.columns if column not in left_out]
    assert head.split() == " ".join(kept).split()


def test_text_of_others_cannot_control_the_terminal() -> None:
    evil = "\x1b[31mred\x07"
    section = Section(evil, ((Cell(evil), Cell(evil, strong=True)),))
    text = drawn(Table("t", evil, (evil, "x"), (section,), (evil,)), 200)
    assert "\x1b[31m" not in text
    assert "\x07" not in text
    assert text.count(r"\x1b[31mred\x07") == 6


def run_table(folder: Path, call: Callable[[list[str]], str]) -> str:
    import json

    for result in results():
        place = folder / str(result["method"]) / str(result["seed"])
        place.mkdir(parents=True)
        (place / "result.json").write_text(json.dumps(result))
    return call([sys.executable, "-m", "atomsep", "table", str(folder)])


def piped(command: list[str]) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def on_terminal(command: list[str]) -> str:
    """What a command writes to a terminal of 120 columns."""
    own, its = pty.openpty()
    variables = {**os.environ, "TERM": "xterm", "COLUMNS": "120"}
    process = subprocess.Popen(command, stdout=its, env=variables)
    os.close(its)
    text = b""
    try:
        while part := os.read(own, 4096):
            text += part
    except OSError:  # how Linux says that the other end is closed
        pass
    finally:
        os.close(own)
    assert process.wait() == 0
    return text.decode()


def test_a_pipe_gets_markdown(tmp_path: Path) -> None:
    expected = "\n\n".join(table.markdown().rstrip() for table in build_tables(results()))
    assert run_table(tmp_path, piped) == expected + "\n"


def test_a_terminal_gets_a_table(tmp_path: Path) -> None:
    text = run_table(tmp_path, on_terminal)
    assert "───" in text
    assert "|---|" not in text
    assert "Atom Modeling" in text


def test_lists_are_markdown_in_a_pipe_and_drawn_on_a_terminal() -> None:
    command = [sys.executable, "-m", "atomsep", "list", "synthetic"]
    text = piped(command)
    assert "| setting | default | with --tiny | meaning |\n|---|---|---|---|\n| epochs |" in text
    assert not set("━│┃─") & set(text)
    text = on_terminal(command)
    assert "|---|" not in text
    assert "━━━" in text
    assert "epochs" in text


def test_strong_cells_are_bold() -> None:
    rows = [["**a|b**", "1"]]
    for terminal, expected in ((True, "\x1b[1ma|b\x1b[0m"), (False, "| **a\\|b** | 1 |")):
        file = io.StringIO()
        look = {"force_terminal": terminal, "color_system": "256", "highlight": False}
        console = SafeConsole(file=file, width=80, markup=False, **look)
        tables.show(console, "A title", ("x", "y"), rows)
        assert expected in file.getvalue()
        assert "A title" in ESCAPES.sub("", file.getvalue())
