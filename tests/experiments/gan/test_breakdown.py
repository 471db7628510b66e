"""Which runs count as broken down."""

from __future__ import annotations

import csv
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
from tiny_gans import bare, run, task_of, tiny
from tiny_runs import read_metrics

from atomsep.experiments.gan.breakdown import find_breakdown
from atomsep.experiments.registry import find_experiment

RECORDED = Path(__file__).parents[3] / "benchmarks" / "results" / "first_runs"


def lines(losses: list[float], distances: dict[int, float] | None = None) -> list[dict[str, Any]]:
    """A line every 1,000 steps, with the distance where there is one."""
    found: list[dict[str, Any]] = []
    for place, loss in enumerate(losses):
        metrics = {"metrics": {"d": distances[place]}} if distances and place in distances else {}
        found.append({"step": 1000 * (place + 1), "discriminator": loss, **metrics})
    return found


def test_a_discriminator_that_has_won() -> None:
    assert find_breakdown(lines([0.5, 0.4, 0.3]), "d", False) is None
    found = find_breakdown(lines([0.5, 0.004, 0.3]), "d", False)
    assert found == "the discriminator's loss was 0.004 from step 1000 to 2000"


def test_a_few_steps_tell_nothing() -> None:
    start = [{"step": 10, "discriminator": 0.001}, {"step": 499, "discriminator": 0.001}]
    assert find_breakdown(start, "d", False) is None
    later = {"step": 1000, "discriminator": 0.5}
    assert find_breakdown([*start, later], "d", False) is None
    assert find_breakdown([*start, {**later, "discriminator": 0.001}], "d", False)


def test_a_mean_over_short_lines_weighs_their_steps() -> None:
    """One step of a hundred lines' length in between does not hide 990 steps of zeros."""
    short = [{"step": 990, "discriminator": 0.0}, {"step": 1000, "discriminator": 0.5}]
    assert find_breakdown(short[:1], "d", False)
    mixed = [{"step": 250, "discriminator": 0.0}, {"step": 500, "discriminator": 0.019}]
    assert find_breakdown(mixed, "d", False)
    mixed = [{"step": 100, "discriminator": 0.0}, {"step": 500, "discriminator": 0.019}]
    assert find_breakdown(mixed, "d", False) is None


def test_a_metric_that_became_ten_times_worse() -> None:
    losses = [0.5] * 4
    assert find_breakdown(lines(losses, {0: 900, 1: 30, 2: 290, 3: 40}), "d", False) is None
    found = find_breakdown(lines(losses, {0: 900, 1: 30, 3: 310}), "d", False)
    assert found == "d went from 30 after 2000 steps to 310 after 4000"
    assert find_breakdown(lines(losses, {0: 5, 1: 900, 3: 95}), "d", True) is None
    found = find_breakdown(lines(losses, {0: 5, 1: 900, 3: 80}), "d", True)
    assert found == "d went from 900 after 2000 steps to 80 after 4000"


@pytest.mark.parametrize(("values", "better"), [((900, 80), True), ((30, 310), False)])
def test_a_metric_that_is_not_a_number_hides_nothing(
    values: tuple[float, float], better: bool
) -> None:
    nan = float("nan")
    for course in ({0: nan, 1: values[0], 2: values[1]}, {0: values[0], 1: nan, 2: values[1]}):
        found = find_breakdown(lines([0.5] * 3, course), "d", better)
        assert found is not None
        assert found.endswith(f"to {values[1]} after 3000")
    assert find_breakdown(lines([0.5] * 2, {0: nan, 1: values[0]}), "d", better) is None


def test_a_metric_that_was_never_above_its_floor() -> None:
    def found(course: dict[int, float], better: bool = True) -> str | None:
        return find_breakdown(lines([0.5] * 3, course), "d", better, floor=10)

    assert found({0: 1, 1: 1, 2: 2}) == "d was never above 2 in 3000 steps"
    assert found({2: 10})
    assert found({0: 1, 2: 11}) is None, "it recovered"
    assert found({}) is None
    assert found({0: 1, 2: 2}, better=False) is None
    short = [{"step": 499, "discriminator": 0.5, "metrics": {"d": 1}}]
    assert find_breakdown(short, "d", True, floor=10) is None, "it has hardly begun"


def test_on_the_recorded_runs() -> None:
    """Those of the documentation: who broke down there is known from looking at them."""
    found = {}
    with open(RECORDED / "mnist_gan_epochs.csv") as file:
        rows = list(csv.DictReader(file))

    def run_of(row: dict[str, str]) -> tuple[str, ...]:
        return row["batch"], row["epochs"], row["method"], row["seed"]

    for name, group in groupby(rows, run_of):
        steps, all_lines = 60_000 // int(name[0]), []
        for row in group:
            line: dict[str, Any] = {"step": int(row["epoch"]) * steps}
            line["discriminator"] = float(row["discriminator_loss"])
            if row["frechet_classifier"]:
                line["metrics"] = {"d": float(row["frechet_classifier"])}
            all_lines.append(line)
        found[name] = find_breakdown(all_lines, "d", False)
    broken = {name for name, reason in found.items() if reason}
    atoms = {("64", epochs, "atom", seed) for epochs in ("25", "15") for seed in "01"}
    assert broken == {*atoms, ("64", "15", "plain", "0")}
    assert len(found) == 12


def test_a_run_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from atomsep.experiments.gan import breakdown

    key = bare("atom", 0, "train_samples=64", "samples=8")
    assert run(key, tmp_path / "healthy")["broken_down"] is None
    monkeypatch.setattr(breakdown, "LONG_ENOUGH", 2)
    monkeypatch.setattr(breakdown, "NEAR_ZERO", 10.0)
    result = run(key, tmp_path / "broken")
    [line, *_] = read_metrics(key.folder(tmp_path / "broken"))
    loss, step = line["discriminator"], line["step"]  # the line of the first step has no losses
    assert result["broken_down"].startswith(f"the discriminator's loss was {loss:.2g} from step 0")
    assert result["broken_down"].endswith(f"to {step}")
    assert result["metrics"], "it is a result all the same"


def test_the_judges_metric_is_what_counts() -> None:
    task = task_of(bare())
    some = [{"step": n, "metrics": {"frechet_Means": d}} for n, d in ((1, 1.0), (2, 11.0))]
    assert str(task.broken_down(some)).startswith("frechet_Means went from 1")


def test_one_mode_from_the_start_is_a_breakdown() -> None:
    stacked = find_experiment("stacked-mnist-gan")
    task = task_of(tiny(stacked))
    for modes, broken in ((1, True), (10, True), (681, False)):  # the last is a recorded run's
        some = [{"step": n, "metrics": {"modes": modes}} for n in (1000, 2000)]
        assert bool(task.broken_down(some)) == broken
