"""The search: on validation samples and seeds alone, and what it chooses is the best."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from atomsep.experiments.errors import ExperimentError
from atomsep.experiments.machine import Machine
from atomsep.experiments.runs import RunKey
from atomsep.experiments.sweeps import search as module
from atomsep.experiments.sweeps.search import search
from atomsep.experiments.sweeps.ledger import Failure, SweepReport
from atomsep.experiments.synthetic import build as synthetic
from atomsep.experiments.synthetic.experiment import SYNTHETIC
from atomsep.experiments.training import StoppedError, train

SMALL = replace(SYNTHETIC, learning_rates=(0.1, 0.3), weight_grid={"": (1.0, 2.0, 4.0)})

Judge = Callable[[RunKey], float | None]


@pytest.fixture
def judged(monkeypatch: pytest.MonkeyPatch) -> Callable[[Judge], list[RunKey]]:
    """Sweeps whose results are made up; None fails. Returns the list that trials are put into."""

    def install(judge: Judge) -> list[RunKey]:
        tried: list[RunKey] = []

        def sweep(keys: Iterable[RunKey], root: Path, *_: Any) -> SweepReport:
            report = SweepReport()
            for key in keys:
                tried.append(key)
                value = judge(key)
                if value is None:
                    report.failed.append(Failure(key, "too hot", root))
                else:
                    report.results.append({**key.record(), "metrics": {"accuracy": value}})
            return report

        monkeypatch.setattr(module, "run_sweep", sweep)
        return tried

    return install


def peak(key: RunKey) -> float:
    """Best at rate 0.1, weight 2 for atom modeling and 4 for SimCLR; the seeds differ."""
    best = {"plain": 0.0, "atom": 2.0, "simclr": 4.0}[key.method]
    settings = key.settings
    return 0.9 - abs(settings.learning_rate - 0.1) - abs(settings.weight - best) + key.seed / 1e4


def test_rate_by_plain_then_each_weight(judged: Any, tmp_path: Path) -> None:
    tried = judged(peak)
    found = search(SMALL, ("plain", "atom", "simclr"), tmp_path, reported=range(10))
    assert found.learning_rate == 0.1
    assert found.weights == {"atom": 2.0, "simclr": 4.0}
    assert found.assignments("simclr") == ["learning_rate=0.1", "weight=4.0"]
    assert found.assignments("plain") == ["learning_rate=0.1"]
    assert all(key.validation for key in tried)
    assert {key.seed for key in tried} == {100, 101, 102, 103, 104}
    assert {key.settings.learning_rate for key in tried if key.method != "plain"} == {0.1}

    written = json.loads((tmp_path / "synthetic" / "search.json").read_text())
    assert written["weights"] == found.weights
    assert len(written["trials"]) == 2 + 3 + 3
    assert written["trials"][0]["values"]["100"] == pytest.approx(peak(tried[0]))


def test_less_can_be_better(judged: Any, tmp_path: Path) -> None:
    judged(lambda key: -peak(key))
    found = search(replace(SMALL, higher_is_better=False), ("atom",), tmp_path)
    assert (found.learning_rate, found.weights) == (0.1, {"atom": 2.0})


def test_a_rate_that_is_set_is_held(judged: Any, tmp_path: Path) -> None:
    tried = judged(peak)
    found = search(SMALL, ("atom",), tmp_path, assignments=["learning-rate=0.3", "epochs=2"])
    assert found.learning_rate == 0.3
    assert {key.settings.learning_rate for key in tried} == {0.3}
    assert {key.settings.epochs for key in tried} == {2}
    assert found.held == ["learning-rate=0.3", "epochs=2"]


def test_a_trial_with_a_failed_seed_is_not_chosen(judged: Any, tmp_path: Path) -> None:
    judged(lambda key: None if (key.settings.weight, key.seed) == (2.0, 103) else peak(key))
    found = search(SMALL, ("atom",), tmp_path)
    assert found.weights == {"atom": 1.0}, "as good as 4, and first"
    [failed] = [trial for trial in found.trials if trial.reason]
    assert failed.reason == "too hot"
    assert sorted(failed.values) == [100, 101, 102, 104]

    judged(lambda key: peak(key) if key.method == "plain" else float("nan"))
    assert search(SMALL, ("atom",), tmp_path).weights == {}
    judged(lambda key: None)
    with pytest.raises(ExperimentError, match="every learning rate failed.*too hot"):
        search(SMALL, ("atom",), tmp_path)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"assignments": ["weight=1"]}, "--search chooses the weight"),
        (
            {"seeds": [5, 100], "reported": range(10)},
            "seed 5 is in both --seeds and --search-seeds",
        ),
    ],
)
def test_bad_requests_get_a_sentence(
    judged: Any, tmp_path: Path, options: dict[str, Any], sentence: str
) -> None:
    judged(peak)
    with pytest.raises(ExperimentError, match=sentence):
        search(SMALL, ("atom",), tmp_path, **options)
    bare = replace(SMALL, weight_grid={})
    with pytest.raises(ExperimentError, match="no weights to search"):
        search(bare, ("atom",), tmp_path)


def test_ablations_share_atom_modelings_grid(judged: Any, tmp_path: Path) -> None:
    tried = judged(lambda key: 0.5)
    experiment = replace(SMALL, weight_grid={"": (1.0,), "atom": (7.0, 8.0)})
    search(experiment, ("simclr", "atom", "atom-no-neutrality"), tmp_path)
    weights = {key.method: set() for key in tried}
    for key in tried:
        weights[key.method].add(key.settings.weight)
    assert weights["atom"] == weights["atom-no-neutrality"] == {7.0, 8.0}
    assert weights["simclr"] == {1.0}


def test_stopped_search_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(module, "run_sweep", lambda keys, *_: SweepReport(left=list(keys)))
    with pytest.raises(StoppedError, match="stopped with 10 trials left"):
        search(SMALL, ("atom",), tmp_path)


def test_test_samples_are_never_drawn(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """With real training, in this process."""
    drawn = set()
    generator = synthetic.generator

    def watched(seed: int, *purpose: Any) -> Any:
        drawn.add((seed, purpose[0]))
        return generator(seed, *purpose)

    def sweep(keys: Iterable[RunKey], root: Path, *_: Any) -> SweepReport:
        machine = Machine(device="cpu", tensorboard=False)
        return SweepReport([train(SYNTHETIC, key, root, machine) for key in keys])

    monkeypatch.setattr(synthetic, "generator", watched)
    monkeypatch.setattr(module, "run_sweep", sweep)
    found = search(SMALL, ("atom",), tmp_path, seeds=(100, 101), tiny=True)
    assert found.weights
    assert {purpose for _, purpose in drawn} == {"training samples", "validation samples"}
    assert {seed for seed, _ in drawn} == {100, 101}
    assert not [path for path in tmp_path.rglob("result.json") if "validation" not in path.parts]
    assert (tmp_path / "synthetic-tiny" / "search.json").exists()
