"""What a run shows of its method's strength while it trains."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from atomsep.cli.display import TrainingDisplay, make_console
from atomsep.experiments.machine import Machine
from atomsep.experiments.progress import Listener
from atomsep.experiments.registry import find_experiment, run_key
from atomsep.experiments.training import train


def shares(whole: float) -> Mapping[str, float]:
    return {"gradient_share": whole, "charge_share": 2 * whole, "position_share": whole / 2}


def test_the_bar_shows_the_share_and_an_odd_one_is_named_once(
    capsys: pytest.CaptureFixture[str],
) -> None:
    display = TrainingDisplay(make_console())

    def bar() -> Any:
        display.progressed(1, 10, {"method": 0.5}, 100)
        return display.tasks[0].fields["losses"]

    assert bar() == "method 0.5"
    display.strength(shares(0.02), 0)
    display.strength(shares(0.03), 1)
    assert bar() == "method 0.5, gradient share 0.03"
    display.strength(shares(2.0), 2)
    display.strength(shares(3.0), 3)
    said = [line for line in capsys.readouterr().out.splitlines() if line.strip()]
    assert said == [
        "At the first step the method's gradient at its layer is 0.02 times the task's (0.04 in "
        "the charge, 0.01 in the positions)",
        "At the end of epoch 2 the method's gradient at its layer is 2 times the task's (4 in the "
        "charge, 1 in the positions). This is large, and the model may not learn the task: try a "
        "smaller weight",
    ]


def test_a_run_tells_its_listener_the_share_at_the_start_and_after_every_epoch(
    tmp_path: Any,
) -> None:
    told = []

    class Hears(Listener):
        def strength(self, shares: Mapping[str, float], epoch: int) -> None:
            told.append((epoch, shares["gradient_share"]))

    experiment = find_experiment("synthetic")
    key = run_key(experiment, "atom", 0, ["epochs=3"], tiny=True)
    result = train(experiment, key, tmp_path, Machine(device="cpu"), Hears())
    assert [epoch for epoch, _ in told] == [0, 1, 2, 3]
    assert told[0][1] == result["strength_at_start"]["gradient_share"]
    assert told[-1][1] == result["last_epoch"]["gradient_share"]
