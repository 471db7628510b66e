"""What a run shows of its method's strength while it trains."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partialmethod
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_runs import read_metrics

from atomsep.cli.display import TrainingDisplay, make_console
from atomsep.experiments.machine import Machine
from atomsep.experiments.progress import Listener
from atomsep.experiments.registry import find_experiment, run_key
from atomsep.experiments.runs import RunKey
from atomsep.experiments.synthetic import build
from atomsep.experiments.synthetic.mixtures import MixtureClassifier
from atomsep.experiments.training import train


class Means(torch.nn.Module):
    """Two features of images, for metrics that nobody looks at."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return images.float().mean((1, 3))[:, :2]


def shares(whole: float) -> Mapping[str, float]:
    return {"gradient_share": whole, "charge_share": 2 * whole, "position_share": whole / 2}


def said(capsys: pytest.CaptureFixture[str]) -> list[str]:
    """The lines that were printed, without those of bars."""
    return [line for line in capsys.readouterr().out.splitlines() if line.strip()]


def test_the_bar_shows_the_share_and_an_odd_one_is_named_once(
    capsys: pytest.CaptureFixture[str],
) -> None:
    display = TrainingDisplay(make_console())

    def bar() -> Any:
        display.progressed(1, 10, {"method": 0.5}, 100)
        return display.tasks[0].fields["losses"]

    assert bar() == "method 0.5"
    display.strength(shares(0.02), 1)
    display.strength(shares(0.03), 4)
    assert bar() == "method 0.5, gradient share 0.03"
    display.strength(shares(2.0), 6)
    display.strength(shares(3.0), 8)
    assert said(capsys) == [
        "At the first step the method's gradient at its layer is 0.02 times the task's (0.04 in "
        "the charge, 0.01 in the positions)",
        "After 6 steps the method's gradient at its layer is 2 times the task's (4 in the charge, "
        "1 in the positions). This is large: the method outweighs the task at this layer. If the "
        "model does not learn the task, compare with a smaller weight",
    ]


def test_the_first_share_is_shown_whenever_it_is_there(capsys: pytest.CaptureFixture[str]) -> None:
    display = TrainingDisplay(make_console())
    display.no_strength("At the first step there is none")
    display.strength({"gradient_share": 0.02}, 4)
    display.strength({"gradient_share": 0.03}, 8)
    assert said(capsys) == [
        "At the first step there is none",
        "After 4 steps the method's gradient at its layer is 0.02 times the task's",
    ]


@pytest.mark.parametrize(("weight", "hinted"), [("0", False), ("1e-9", True)])
def test_a_weight_of_zero_is_not_called_small(
    weight: str, hinted: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    display = TrainingDisplay(make_console())
    key = run_key(find_experiment("synthetic"), "atom", 0, [f"weight={weight}"], tiny=True)
    display.started(key, 0, 10)
    display.strength({"gradient_share": float(weight)}, 1)
    assert ("small" in said(capsys)[-1]) is hinted


@pytest.mark.parametrize(
    ("share", "hint"),
    [(0.00099, "small"), (0.001, ""), (0.5, ""), (1.0, ""), (1.01, "large")],
)
def test_a_share_under_a_tenth_of_a_per_cent_or_over_all_of_the_task_s_gets_a_hint(
    share: float, hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    TrainingDisplay(make_console()).strength({"gradient_share": share}, 1)
    [line] = said(capsys)
    assert line.partition("the task's")[2].startswith(f". This is {hint}" if hint else "")
    assert ("This is" in line) is bool(hint)


def hear(key: RunKey, root: Path) -> tuple[list[tuple[int, float]], list[str], dict[str, Any]]:
    """Shares and sentences that a run tells its listener, and the result."""
    told, sentences = [], []

    class Hears(Listener):
        def strength(self, shares: Mapping[str, float], step: int) -> None:
            told.append((step, shares["gradient_share"]))

        def no_strength(self, why: str) -> None:
            sentences.append(why)

    machine = Machine(device="cpu", tensorboard=False)
    result = train(find_experiment(key.experiment), key, root, machine, Hears())
    return told, sentences, result


def test_a_run_tells_its_listener_the_share_at_the_start_and_after_every_epoch(
    tmp_path: Path,
) -> None:
    key = run_key(find_experiment("synthetic"), "atom", 0, ["epochs=3"], tiny=True)
    told, sentences, result = hear(key, tmp_path)
    assert [step for step, _ in told] == [1, 4, 8, 12]
    assert told[0][1] == result["strength_at_start"]["gradient_share"]
    assert told[-1][1] == result["last_epoch"]["gradient_share"]
    assert not sentences


@pytest.mark.parametrize("method", ["atom", "koleo"])
def test_a_task_without_a_gradient_at_first_is_named(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Zeros(MixtureClassifier):
        """Its head starts at zero, so nothing of the task arrives before it in the first step."""

        def __init__(self, activation: str) -> None:
            super().__init__(activation)
            torch.nn.init.zeros_(self.head.weight)

    monkeypatch.setattr(build, "MixtureClassifier", Zeros)
    key = run_key(find_experiment("synthetic"), method, 0, [], tiny=True)
    told, sentences, result = hear(key, tmp_path)
    [sentence] = sentences
    assert "the task's gradient at the layer is zero in this step" in sentence
    assert [step for step, _ in told] == [4, 8]
    assert result["strength_at_start"] == {}
    assert [line["step"] for line in read_metrics(key.folder(tmp_path), start=True)] == [4, 8]


@pytest.mark.parametrize(("method", "said"), [("atom", 1), ("koleo", 1), ("plain", 0)])
def test_a_compiled_model_says_why_it_shows_no_share(
    method: str, said: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled = partialmethod(torch.nn.Module.compile, backend="eager")  # nothing to build
    monkeypatch.setattr(torch.nn.Module, "compile", compiled)
    key = run_key(find_experiment("synthetic"), method, 0, ["compile=true"], tiny=True)
    told, sentences, result = hear(key, tmp_path)
    assert not told
    assert len(sentences) == said
    assert all("compile=true leaves it out" in sentence for sentence in sentences)
    assert result["strength_at_start"] == {}


def test_mode_seeking_never_has_a_share(tmp_path: Path) -> None:
    few = ("train_samples=64", "samples=8", f"features={__name__}:Means")
    key = run_key(find_experiment("mnist-gan"), "mode-seeking", 0, few, tiny=True)
    told, sentences, _ = hear(key, tmp_path)
    assert told == sentences == []


@pytest.mark.parametrize(
    ("epochs", "sentence"),
    [
        (1, "The result is that of the only evaluation, although average_last=3"),
        (
            2,
            "The result is the mean of only 2 evaluations: this run has fewer than average_last=3",
        ),
        (3, None),
    ],
)
def test_fewer_evaluations_than_are_averaged_are_told(
    epochs: int, sentence: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    experiment = find_experiment("synthetic")
    changes = [f"epochs={epochs}", "average_last=3"]
    key = run_key(experiment, "plain", 0, changes, tiny=True)
    with TrainingDisplay(make_console()) as display:
        train(experiment, key, tmp_path, Machine(device="cpu", tensorboard=False), display)
    about = [line for line in said(capsys) if line.startswith("The result is")]
    assert [line.split(", as")[0] for line in about] == ([] if sentence is None else [sentence])
