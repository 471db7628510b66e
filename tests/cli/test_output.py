"""Text from outside cannot control the terminal, wherever it comes from."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from atomsep.cli.display import make_console
from atomsep.cli.main import main
from atomsep.cli.printable import printable
from atomsep.experiments.registry import find_experiment, run_key
from atomsep.experiments.runs import Run

EVIL = "\x1b[31m\x1b]0;title\x07"
SHOWN = r"\x1b[31m\x1b]0;title\x07"


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    monkeypatch.chdir(tmp_path)


def output(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> str:
    """Everything that a call prints, which holds no control character but the line break."""
    with pytest.raises(SystemExit) as exit:
        main(arguments)
    captured = capsys.readouterr()
    assert exit.value.code == code, captured.err
    text = captured.out + captured.err
    assert not [character for character in text if character < " " and character != "\n"]
    return text


def foreign_result(**changes: Any) -> dict[str, Any]:
    key = run_key(find_experiment("synthetic"), "atom", 0, tiny=True)
    return {**key.record(), "metrics": {"accuracy": 0.9}, **changes}


def write_result(folder: str, result: Any) -> None:
    Path(folder).mkdir(parents=True)
    Path(folder, "result.json").write_text(json.dumps(result))


def test_control_characters_are_written_out_and_all_other_text_stays() -> None:
    assert printable(EVIL) == SHOWN
    assert printable("a\tb\r\x00\x7f\x9b2J") == r"a\tb\r\x00\x7f\x9b2J"
    assert printable("\u202etxt.exe\u2028") == r"\u202etxt.exe\u2028"
    assert printable(os.fsdecode(b"caf\xe9")) == r"caf\udce9"
    assert printable("± Fréchet, 東京\n½ [red]") == "± Fréchet, 東京\n½ [red]"


def test_a_sentence_keeps_brackets_and_colons(capsys: pytest.CaptureFixture[str]) -> None:
    make_console().say("[bold]runs[/bold] :smile: " + "x" * 400)
    assert capsys.readouterr().out == "[bold]runs[/bold] :smile: " + "x" * 400 + "\n"


def test_column_names_of_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    Path("mine.csv").write_text(f"text,{EVIL}\na,b\n")
    text = output(capsys, "train", "own-text", "--set", "file=mine.csv", code=1)
    assert f"must have one column 'label', but its columns are text, {SHOWN};" in text


def test_names_of_files_and_folders(capsys: pytest.CaptureFixture[str]) -> None:
    assert f"there is no folder no{SHOWN}where;" in output(
        capsys, "table", f"no{EVIL}where", code=1
    )
    text = output(capsys, "train", "own-text", "--set", f"file={EVIL}.csv", code=1)
    assert f"there is no file {SHOWN}.csv;" in text
    write_result(f"runs/{EVIL}", "nothing")
    assert f"runs/{SHOWN}/result.json is not a result" in output(capsys, "table", "runs", code=1)
    undecodable = os.fsdecode(b"\xff")
    assert r"there is no folder \udcff;" in output(capsys, "table", undecodable, code=1)


def test_arguments_that_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert SHOWN in output(capsys, f"tra{EVIL}in", code=2)
    assert SHOWN in output(capsys, "table", "runs", EVIL, code=2)


def test_errors_of_others_code(capsys: pytest.CaptureFixture[str]) -> None:
    Path("raising.py").write_text(f"raise RuntimeError({EVIL!r})\n")
    assert f"RuntimeError: {SHOWN}" in output(capsys, "--import", "raising", "list", code=1)
    text = output(capsys, "--debug", "--import", "raising", "list", code=1)
    assert text.count(SHOWN) > 1, "in the traceback too"


@pytest.mark.parametrize("format", ["markdown", "latex", "csv"])
def test_tables_of_a_foreign_result(capsys: pytest.CaptureFixture[str], format: str) -> None:
    settings = {**foreign_result()["settings"], "layer": f"layer {EVIL}"}
    metrics = {"accuracy": 0.5, f"loss {EVIL}": 0.1}
    write_result("runs/a", foreign_result(settings=settings, metrics=metrics))
    text = output(capsys, "table", "runs", "--format", format)
    assert text.count("x1b") >= 2


def test_a_finished_run_of_someone_else(capsys: pytest.CaptureFixture[str]) -> None:
    key = run_key(find_experiment("synthetic"), "atom", 0, tiny=True)
    run = Run(key.folder(Path("runs")))
    write_result(
        str(run.folder),
        foreign_result(metrics={f"[red]{EVIL}": 0.5}, unreadable=[f"{EVIL}.png"]),
    )
    text = output(capsys, "train", "synthetic", "--tiny")
    assert f"[red]{SHOWN} " in text
    assert f"The run left out 1 unreadable sample, for example {SHOWN}.png" in text
