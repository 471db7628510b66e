"""The search: on validation samples and seeds alone, and what it chooses is the best."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from atomsep.cli.display import search_table
from atomsep.experiments.entry_points import IMPORTED, import_extensions
from atomsep.experiments.errors import ExperimentError, StoppedError
from atomsep.experiments.machine import Machine
from atomsep.experiments.registry import EXPERIMENTS, find_experiment
from atomsep.experiments.runs import RunKey
from atomsep.experiments.sweeps.ledger import Event, Failure, OnEvent, SweepReport
from atomsep.experiments.sweeps.search import search
from atomsep.experiments.synthetic import build as synthetic
from atomsep.experiments.synthetic.experiment import SYNTHETIC
from atomsep.experiments.task import Experiment
from atomsep.experiments.training import train

SWEEP = "atomsep.experiments.sweeps.sweep.Sweep"

SMALL = replace(SYNTHETIC, learning_rates=(0.1, 0.3), weight_grid={"": (1.0, 2.0, 4.0)})

Judge = Callable[[RunKey], float | None]
CPU = Machine(device="cpu", tensorboard=False)


def sweeps(run: Callable[[Iterable[RunKey], Path], SweepReport]) -> type:
    """A class that takes the place of `Sweep`, with another way to run trials."""

    class OtherSweep(AbstractContextManager[Any]):
        def __init__(self, root: Path, *_: Any) -> None:
            self.root = root

        def run(self, keys: Iterable[RunKey], on_event: OnEvent) -> SweepReport:
            return run(keys, self.root)

        def __exit__(self, *_: object) -> None:
            pass

    return OtherSweep


def train_here(keys: Iterable[RunKey], root: Path) -> SweepReport:
    """Train in this process."""
    return SweepReport([train(find_experiment(key.experiment), key, root, CPU) for key in keys])


@pytest.fixture
def judged(monkeypatch: pytest.MonkeyPatch) -> Callable[[Judge], list[RunKey]]:
    """Sweeps whose results are made up; None fails. Returns the list that trials are put into."""

    def install(judge: Judge) -> list[RunKey]:
        tried: list[RunKey] = []

        def run(keys: Iterable[RunKey], root: Path) -> SweepReport:
            report = SweepReport()
            for key in keys:
                tried.append(key)
                value = judge(key)
                if value is None:
                    report.failed.append(Failure(key, "too hot", root))
                else:
                    report.results.append({**key.record(), "metrics": {"accuracy": value}})
            return report

        monkeypatch.setattr(SWEEP, sweeps(run))
        return tried

    return install


def peak(key: RunKey) -> float:
    """Best at rate 0.1, weight 2 for atom modeling and 4 for SimCLR; the seeds differ."""
    best = {"plain": 0.0, "atom": 2.0, "simclr": 4.0}[key.method]
    settings = key.settings
    return 0.9 - abs(settings.learning_rate - 0.1) - abs(settings.weight - best) + key.seed / 1e4


def of(search: dict[str, Any], method: str) -> list[dict[str, Any]]:
    return [trial for trial in search["trials"] if trial["method"] == method]


def test_rate_by_plain_then_each_weight(judged: Any, tmp_path: Path) -> None:
    tried = judged(peak)
    found = search(SMALL, ("plain", "atom", "simclr"), tmp_path, reported=range(10))
    assert found.learning_rate == 0.1
    assert found.weight_decay is None
    assert found.weights == {"atom": 2.0, "simclr": 4.0}
    assert found.assignments("simclr") == ["learning_rate=0.1", "weight=4.0"]
    assert found.assignments("plain") == ["learning_rate=0.1"]
    assert all(key.validation for key in tried)
    assert {key.seed for key in tried} == {100, 101, 102, 103, 104}
    assert {key.settings.learning_rate for key in tried if key.method != "plain"} == {0.1}

    written = json.loads(next(tmp_path.glob("synthetic/search-*.json")).read_text())
    assert written["weights"] == found.weights
    # SimCLR's grid is widened by one, and atom modeling's refined by one.
    assert [len(of(written, method)) for method in ("atom", "simclr")] == [4, 4]
    assert {trial["weight"] for trial in of(written, "simclr")} == {1.0, 2.0, 4.0, 8.0}
    assert {trial["weight"] for trial in of(written, "atom")} == {1.0, 2.0, 4.0, 1.414}
    assert [trial["stage"] for trial in of(written, "plain")] == ["learning_rate"] * 3
    assert [trial["learning_rate"] for trial in of(written, "plain")] == [0.1, 0.3, 0.03333]
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
    assert found.weights == {"atom": 1.0}, "as good as 4, and first; beyond it is worse"
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
    assert weights["atom"] == weights["atom-no-neutrality"] == {7.0, 8.0, 6.125}
    assert weights["simclr"] == {1.0}, "a single weight has no ratio to go on with"


def test_stopped_search_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(SWEEP, sweeps(lambda keys, _: SweepReport(left=list(keys))))
    with pytest.raises(StoppedError, match="stopped with 10 trials left"):
        search(SMALL, ("atom",), tmp_path)


def test_test_samples_are_never_drawn(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """With real training, in this process."""
    drawn = set()
    generator = synthetic.generator

    def watched(seed: int, *purpose: Any) -> Any:
        drawn.add((seed, purpose[0]))
        return generator(seed, *purpose)

    monkeypatch.setattr(synthetic, "generator", watched)
    monkeypatch.setattr(SWEEP, sweeps(train_here))
    found = search(SMALL, ("atom",), tmp_path, seeds=(100, 101), tiny=True)
    assert found.weights
    assert {purpose for _, purpose in drawn} == {"training samples", "validation samples"}
    assert {seed for seed, _ in drawn} == {100, 101}
    assert not [path for path in tmp_path.rglob("result.json") if "validation" not in path.parts]
    assert len(list(tmp_path.glob("synthetic-tiny/search-*.json"))) == 1


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> Iterator[Experiment]:
    """The experiment with a known function, registered here and in workers."""
    monkeypatch.chdir(Path(__file__).parent)
    monkeypatch.setattr(sys, "path", list(sys.path))
    import_extensions(["toy_experiment"])
    yield EXPERIMENTS["toy"]
    sys.modules.pop("toy_experiment")
    EXPERIMENTS.pop("toy")
    IMPORTED.clear()


METHODS = ("plain", "atom", "simclr", "hinge-2")


def test_grids_widen_up_to_the_known_optimum(
    toy: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SWEEP, sweeps(train_here))
    found = search(toy, METHODS, tmp_path, seeds=(100, 101))
    plain = [trial for trial in found.trials if trial.method == "plain"]
    rates = [trial.learning_rate for trial in plain if trial.weight_decay == 0.001]
    assert rates == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2], "widened until the best lies inside"
    decays = [trial.weight_decay for trial in plain if trial.learning_rate == 1.6]
    assert decays[:5] == [0.001, 0.002, 0.004, 0.008, 0.016]
    again = [trial.learning_rate for trial in plain if trial.weight_decay == 0.008]
    assert again == [1.6, 0.8, 3.2, 0.4, 0.2], "the neighbours, then further the better way"
    assert (found.learning_rate, found.weight_decay) == (0.4, 0.008)

    best = max(plain, key=lambda trial: trial.mean)
    assert best.point == found.point("plain"), "no other trial was better"
    assert found.weights["atom"] == 16.0
    assert found.weights["simclr"] == 32.0, "three beyond the grid, and no more"
    assert 2.0 < found.weights["hinge-2"] < 2.5, "refined: 2 ** 1.2 is 2.3"
    assert found.at_an_end() == [
        "The search chose the largest weight of simclr that it tried, 32; a better one may lie "
        "beyond"
    ]
    assert found.summary() == [
        "Chosen: learning rate 0.4, weight decay 0.008, weight of atom 16, weight of simclr 32, "
        f"weight of hinge-2 {found.weights['hinge-2']:g}",
        "Settings tried over the seeds 100, 101: plain 14; every other method 6, at plain's "
        "choices",
    ]
    table = search_table(found)
    assert [column.header for column in table.columns][1:4] == [
        *("learning rate", "weight decay", "weight")
    ]
    assert sum(row.style == "bold" for row in table.rows) == 4


def test_a_decay_that_is_set_is_held(
    toy: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SWEEP, sweeps(train_here))
    found = search(toy, ("atom",), tmp_path, seeds=(100,), assignments=["weight_decay=0.004"])
    assert {trial.weight_decay for trial in found.trials} == {0.004}
    assert (found.learning_rate, found.weights) == (0.8, {"atom": 16.0}), "4 - 0.6 * 2 is 2.8"
    found = search(toy, ("atom",), tmp_path, seeds=(100,), assignments=["learning_rate=1.6"])
    assert {trial.learning_rate for trial in found.trials} == {1.6}
    assert found.weight_decay == 0.008


def test_a_bound_of_a_setting_ends_its_grid(
    toy: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SWEEP, sweeps(train_here))
    bounded = replace(toy, weight_decays=(0.125, 0.5))
    found = search(bounded, (), tmp_path, seeds=(100,), assignments=["learning_rate=0.0001"])
    assert [trial.weight_decay for trial in found.trials] == [0.125, 0.5], "2 would be too large"
    assert found.weight_decay == 0.5
    assert "largest weight decay that it tried, 0.5" in found.at_an_end()[0]


def test_a_search_in_processes_that_was_stopped_continues(
    toy: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends as one that ran in this process without a break."""
    events: list[Event] = []

    def interrupt(event: Event) -> None:
        events.append(event)
        if sum(each.kind == "finished" for each in events) == 7:
            os.kill(os.getpid(), signal.SIGINT)

    options = {"seeds": (100, 101), "assignments": ["epochs=2"]}
    with pytest.raises(StoppedError):
        search(toy, METHODS, tmp_path / "stopped", CPU, 1, interrupt, **options)
    written = json.loads(next(tmp_path.glob("stopped/toy/search-*.json")).read_text())
    assert len(written["trials"]) == 3, "the first grid"
    continued = search(toy, METHODS, tmp_path / "stopped", CPU, None, events.append, **options)
    assert sum(event.kind == "skipped" for event in events) >= 7
    monkeypatch.setattr(SWEEP, sweeps(train_here))
    whole = search(toy, METHODS, tmp_path / "whole", **options)
    assert asdict(continued) == asdict(whole)
    [one], [other] = (list(tmp_path.glob(f"{name}/toy/*.json")) for name in ("stopped", "whole"))
    assert (one.name, one.read_text()) == (other.name, other.read_text())
