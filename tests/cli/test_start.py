"""How the command line starts: without heavy imports, and answering Ctrl-C during imports."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import atomsep

HEAVY = ("torch", "lightning", "transformers", "torchvision", "sklearn", "scipy", "matplotlib")

CALLS = {
    "--help": 0,
    "train --help": 0,
    "layers --help": 0,
    "--version": 0,
    "list": 0,
    "list flowers": 0,
    "tarin": 2,
    "train": 2,
    "layers": 2,
    "train sythetic": 1,
    "train synthetic --method atmo": 1,
    "train synthetic --set epocs=1": 1,
    "train synthetic --set epochs=many": 1,
    "train synthetic --set batch=9999999999999999999999": 1,
    "train synthetic --set method.tau=1": 1,
    "train synthetic --seed -1": 2,
    "train synthetic --seed 99999999999999999999": 1,
    "train synthetic --device gpu0": 1,
    "train flowers --data-on gpu": 1,
    "sweep flowers --data-on gpu": 1,
    "train own-gan --set channels=2": 1,
    "train own-images": 1,
    "train own-images --set folder=nowhere": 1,
    "sweep own-images --set folder=nowhere": 1,
    "train own-text": 1,
    "train own-text --set file=nowhere.csv": 1,
    "sweep synthetic --methods plain,atm": 1,
    "sweep synthetic --seeds few": 1,
    "sweep synthetic --seeds 999999999999": 1,
    "sweep synthetic --search --seeds 101,": 1,
    "sweep synthetic --search --set weight=1": 1,
    "sweep synthetic --jobs many": 2,
    "sweep synthetic --mps --device cpu": 1,
    "table nowhere": 1,
    "table . --format html": 1,
    "report nowhere": 1,
    "faithful": 2,
    "faithful nowhere": 1,
    "list synthetc": 1,
}
"""Calls that train nothing, and their exit codes."""

SCRIPT = """
import json, pathlib, sys
from atomsep.cli.main import main
path, heavy, calls = sys.argv[1], *map(json.loads, sys.argv[2:])
found, seen = {}, set()
for call in calls:
    try:
        main(call.split())
    except SystemExit as exit:
        new = [name for name in heavy if name in sys.modules and name not in seen]
        found[call] = [exit.code, new]
        seen.update(new)
pathlib.Path(path).write_text(json.dumps(found))
"""


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[int, list[str]]]:
    """For every call its exit code, and the heavy modules that it was the first to import."""
    path = tmp_path_factory.mktemp("start") / "answers"
    command = [sys.executable, "-c", SCRIPT, path, json.dumps(HEAVY), json.dumps(list(CALLS))]
    subprocess.run(command, cwd=path.parent, capture_output=True, check=True)
    found: dict[str, tuple[int, list[str]]] = json.loads(path.read_text())
    return found


@pytest.mark.parametrize("call", CALLS)
def test_what_trains_nothing_imports_nothing_heavy(
    answers: dict[str, tuple[int, list[str]]], call: str
) -> None:
    code, heavy = answers[call]
    assert heavy == []
    assert code == CALLS[call]


def test_the_version_is_the_packages() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "atomsep", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout == f"atomsep {atomsep.__version__}\n"


@pytest.mark.parametrize("module", ["typer", "my_experiments"])
def test_ctrl_c_during_an_import_stops_with_a_word(tmp_path: Path, module: str) -> None:
    """The first is imported by the command line itself, the second because it was asked to."""
    (tmp_path / f"{module}.py").write_text(
        "import time\nprint('importing', flush=True)\ntime.sleep(60)\n"
    )
    command = [sys.executable, "-m", "atomsep", "--import", "my_experiments", "list"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, cwd=tmp_path, text=True, **pipes) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "importing\n"
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=30)
    assert process.returncode == 130
    assert errors == "atomsep: stopped\n"


def test_without_typer_it_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "typer.py").write_text("raise ModuleNotFoundError('gone', name='typer')\n")
    command = [sys.executable, "-m", "atomsep", "list"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr == (
        "atomsep: the command line needs typer; install it with: "
        "pip install 'atomsep[experiments]'\n"
    )
