"""Experiments of a user's own, registered from Python and found by the command line."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from atomsep.cli.main import main
from atomsep.experiments.entry_points import IMPORTED
from atomsep.experiments.errors import ExperimentError
from atomsep.experiments.registry import EXPERIMENTS, find_experiment, register_experiment, run_key
from atomsep.experiments.runs import find_results

SYNTHETIC = find_experiment("synthetic")
MODULE = """
from dataclasses import replace
from atomsep.experiments.registry import find_experiment, register_experiment

mine = replace(
    find_experiment("synthetic"), name="my-mixtures", title="My mixtures", summary="as I like them"
)
register_experiment(mine)
"""


@pytest.fixture
def my_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A module of the current folder that registers an experiment, forgotten at the end."""
    (tmp_path / "my_experiments.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    sys.modules.pop("my_experiments", None)
    EXPERIMENTS.pop("my-mixtures", None)
    IMPORTED.clear()


def call(*arguments: str) -> int:
    with pytest.raises(SystemExit) as exit:
        main(["--import", "my_experiments", *arguments])
    assert isinstance(exit.value.code, int)
    return exit.value.code


def test_it_is_listed_trained_swept_and_put_into_tables(
    my_module: None, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert call("list") == 0
    assert "as I like them" in capfd.readouterr().out
    assert call("list", "my-mixtures") == 0
    assert "my-mixtures: as I like them" in capfd.readouterr().out
    assert call("train", "my-mixtures", "--tiny", "--method", "plain") == 0
    assert "Training my-mixtures with plain, seed 0" in capfd.readouterr().out
    sweep = ("sweep", "my-mixtures", "--tiny", "--methods", "plain,atom", "--seeds", "1")
    assert call(*sweep) == 0, "its processes import the module too"
    assert {result["method"] for result in find_results(tmp_path / "runs")} == {"plain", "atom"}
    capfd.readouterr()
    assert call("table", "runs") == 0
    assert "### My mixtures" in capfd.readouterr().out


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "--import my_experiments: the module cannot be imported (No module named"),
        ("1 / 0", "the module cannot be imported (ZeroDivisionError: division by zero)"),
        ("def broken(:", "the module cannot be imported (SyntaxError: "),
        (MODULE.replace("my-mixtures", "cola"), "there already is an experiment 'cola'"),
        (MODULE.replace("my-mixtures", "../mixtures"), "cannot be named '../mixtures'"),
    ],
)
def test_a_module_that_cannot_be_used_is_named(
    my_module: None, capsys: pytest.CaptureFixture[str], text: str | None, message: str
) -> None:
    if text is None:
        Path("my_experiments.py").unlink()
    else:
        Path("my_experiments.py").write_text(text)
    assert call("list") == 1
    assert message in capsys.readouterr().err


def test_only_what_fits_can_be_registered() -> None:
    with pytest.raises(ExperimentError, match="no method 'atm' for mine; did you mean 'atom'"):
        register_experiment(replace(SYNTHETIC, name="mine", methods=("plain", "atm")))
    with pytest.raises(ExperimentError, match="no method 'atm' for mine"):
        register_experiment(replace(SYNTHETIC, name="mine", weights={"atm": 1.0}))
    register_experiment(SYNTHETIC)  # as when a module is imported again
    assert "mine" not in EXPERIMENTS


@pytest.mark.parametrize("seed", [-1, 2**63])
def test_seeds_that_generators_do_not_take_are_refused(seed: int) -> None:
    with pytest.raises(ExperimentError, match="a seed must be between 0 and"):
        run_key(SYNTHETIC, "atom", seed)
    assert run_key(SYNTHETIC, "atom", 2**63 - 1).seed == 2**63 - 1


def test_an_option_that_the_method_lacks_is_refused_before_anything_is_built() -> None:
    with pytest.raises(ExperimentError, match="method 'rank-h' has no option 'tau'; it takes marg"):
        run_key(SYNTHETIC, "rank-h", 0, ["method.tau=1"])
