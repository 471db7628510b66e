"""What a search writes and shows, also of trials that fail or break down."""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from atomsep.cli.display import make_console, show_search
from atomsep.experiments.runs import RunKey
from atomsep.experiments.sweeps.ledger import Failure, OnEvent, SweepReport
from atomsep.experiments.sweeps.search import search
from atomsep.experiments.synthetic.experiment import SYNTHETIC

SWEEP = "atomsep.experiments.sweeps.sweep.Sweep"

SMALL = replace(SYNTHETIC, learning_rates=(), weight_grid={"": (1.0, 2.0, 4.0)})


class MadeUp(AbstractContextManager[Any]):
    """Made-up results, best at weight 2; SimCLR fails, and seed 101 breaks down at weight 4."""

    def __init__(self, root: Path, *_: Any) -> None:
        self.root = root

    def run(self, keys: Iterable[RunKey], on_event: OnEvent) -> SweepReport:
        report = SweepReport()
        for key in keys:
            weight = key.settings.weight
            if key.method == "simclr":
                reason = "too hot" if weight == 1 else "out of memory"
                report.failed.append(Failure(key, reason, self.root))
                continue
            result = {**key.record(), "metrics": {"accuracy": 0.9 - abs(weight - 2) / 10}}
            if weight == 4 and key.seed == 101:
                result["broken_down"] = "the discriminator's loss was too small"
            report.results.append(result)
        return report

    def __exit__(self, *_: object) -> None:
        pass


@pytest.fixture(autouse=True)
def made_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(SWEEP, MadeUp)


def test_failures_are_shown_with_their_reasons(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = search(SMALL, ("atom", "simclr"), tmp_path, seeds=(100, 101))
    assert found.weights == {"atom": 2.0}
    show_search(make_console(), found)
    lines = [each for each in capsys.readouterr().out.splitlines() if each.startswith("Failed")]
    assert lines == [
        "Failed: simclr, 1 setting: too hot",
        "Failed: simclr, 2 settings: out of memory",
    ]


def test_runs_that_broke_down_count_and_are_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = search(SMALL, ("atom",), tmp_path, seeds=(100, 101))
    broken = {trial.weight: trial.broken_down for trial in found.trials if trial.method == "atom"}
    assert broken == {1.0: (), 2.0: (), 4.0: (101,)}
    [written] = [json.loads(path.read_text()) for path in tmp_path.rglob("search*.json")]
    assert [trial["broken_down"] for trial in written["trials"]] == [[], [], [], [101]]
    show_search(make_console(), found)
    out = capsys.readouterr().out
    assert "0.7000 (1 broke down)" in out
    assert out.count("broke down") == 1


def test_a_search_with_other_settings_has_its_own_file(tmp_path: Path) -> None:
    default = f"learning_rate={SMALL.settings.learning_rate}"
    for assignments in ([], ["epochs=2"], ["epochs=3"], [default], [default, "epochs=2"]):
        search(SMALL, ("atom",), tmp_path, seeds=(100,), assignments=assignments)
    files = {path: path.read_text() for path in tmp_path.glob("synthetic/search-*.json")}
    held = sorted(json.loads(text)["held"] for text in files.values())
    assert held == [[], ["epochs=2"], ["epochs=3"], [default], [default, "epochs=2"]]
    search(SMALL, ("atom",), tmp_path, seeds=(100,), assignments=["epochs = 2"])
    assert set(tmp_path.glob("synthetic/search-*.json")) == files.keys(), "the same, written apart"
