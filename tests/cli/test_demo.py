"""The demo, in its tiny form and in this process."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from atomsep.cli import demo
from atomsep.experiments.errors import ExperimentError
from atomsep.experiments.machine import Machine
from atomsep.experiments.registry import run_key
from atomsep.experiments.runs import RunKey, find_results
from atomsep.experiments.sweeps.ledger import Failure, SweepReport
from atomsep.experiments.sweeps.sweep import run_sweep
from atomsep.experiments.synthetic.experiment import SYNTHETIC
from atomsep.experiments.training import train
from atomsep.report.groups import Group, group_results


def sweep_here(keys: Sequence[RunKey], root: Path, machine: Machine, *_: Any) -> SweepReport:
    return SweepReport([train(SYNTHETIC, key, root, machine) for key in keys])


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the demo's runs, as a sweep leaves them."""
    out = tmp_path_factory.mktemp("demo")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(demo, "run_sweep", sweep_here)
        assert demo.main(["--out", str(out), "--tiny", "--seeds", "3"]) == 0
    return out


def test_files_hold_what_the_runs_found(finished: Path) -> None:
    names = {"results.csv", "tables.md", "figures"}
    assert {path.name for path in finished.iterdir()} == names | {"runs", "report.html"}
    figures = {path.stem for path in (finished / "figures").glob("*.png")}
    assert {"energy", *(f"synthetic-tiny-{name}" for name in ("latent", "charge"))} <= figures
    found = {(r["seed"], r["method"]): r["metrics"] for r in find_results(finished / "runs")}
    with open(finished / "results.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["seed"] for row in rows] == ["0", "1", "2"]
    for row in rows:
        assert row.keys() - {"seed"} == set(demo.METHODS)
        for method in demo.METHODS:
            assert float(row[method]) == found[int(row["seed"]), method]["accuracy"]
    assert "tiny form" in (finished / "tables.md").read_text()


def test_a_second_call_trains_nothing(
    finished: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(demo, "run_sweep", run_sweep)
    monkeypatch.setattr("atomsep.experiments.sweeps.sweep.WorkerProcess", None)
    assert demo.main(["--out", str(finished), "--tiny", "--seeds", "3"]) == 0
    printed = capsys.readouterr().out
    assert "27 of 27 runs were finished before" in printed
    assert "best possible (Bayes)" in printed
    assert "95.96" in printed
    lines = [line for line in printed.splitlines() if "atom modeling" in line]
    assert len(lines) == 1
    assert "(+" in lines[0], "the paired difference with its interval"
    assert f"The report, for a browser: {finished.resolve() / 'report.html'}" in printed


def test_the_closing_sentence_says_what_the_seeds_show() -> None:
    """Worked out by hand: differences of 2, 4 and 3 have t = 5.196 and p = 0.0351; 3 ± 2.484."""
    group = mixtures(plain=[0.90, 0.90, 0.90], atom=[0.92, 0.94, 0.93])
    assert demo.what_happened(group) == (
        "Atom modeling did better than cross-entropy in accuracy, %: +3.00 (95 % interval +0.52 to "
        f"+5.48) over 3 paired seeds, p = 0.035. {demo.UNTUNED}"
    )
    group = mixtures(plain=[0.92, 0.94, 0.93], atom=[0.90, 0.90, 0.90])
    assert "did worse than cross-entropy in accuracy, %: −3.00" in demo.what_happened(group)
    group = mixtures(plain=[0.90, 0.92, 0.91], atom=[0.91, 0.90, 0.92])
    assert "showed no difference to cross-entropy" in demo.what_happened(group)
    group = mixtures(plain=[0.90, 0.92], atom=[0.91, 0.90])
    assert "could not be tested against cross-entropy" in demo.what_happened(group)
    assert "one of them has no run" in demo.what_happened(mixtures(plain=[0.9]))


def mixtures(**accuracies: list[float]) -> Group:
    results = [
        {**run_key(SYNTHETIC, method, seed).record(), "metrics": {"accuracy": value}}
        for method, values in accuracies.items()
        for seed, value in enumerate(values)
    ]
    return group_results(results)[0]


def test_stopped_and_failed_runs_are_said(
    finished: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["--out", str(finished), "--tiny", "--seeds", "3"]

    def stopped(keys: Sequence[RunKey], *rest: Any) -> SweepReport:
        report = sweep_here(keys[:10], *rest)
        report.left = list(keys[10:])
        return report

    monkeypatch.setattr(demo, "run_sweep", stopped)
    assert demo.main(command) == 130
    assert "Stopped with 10 of 27 runs finished" in capsys.readouterr().out

    def failed(keys: Sequence[RunKey], *rest: Any) -> SweepReport:
        report = sweep_here(keys[1:], *rest)
        report.failed = [Failure(keys[0], "no", Path("log.txt"))]
        return report

    monkeypatch.setattr(demo, "run_sweep", failed)
    assert demo.main(command) == 1
    assert "plain, seed 0 failed: no (details in log.txt)" in capsys.readouterr().out

    def refused(*_: Any) -> SweepReport:
        raise ExperimentError("the disk is full")

    monkeypatch.setattr(demo, "run_sweep", refused)
    assert demo.main(command) == 1
    assert "The demo cannot continue: the disk is full" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["0", "two", "-1", "1.5", "999999999999"])
def test_bad_arguments_get_a_sentence(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        demo.main(["--seeds", text])
    assert exit_.value.code == 2
    assert f"must be a whole number from 1 to 10000, not '{text}'" in capsys.readouterr().err
