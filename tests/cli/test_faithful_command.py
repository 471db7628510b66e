"""`atomsep faithful`: files, tables, refusals as sentences."""

from __future__ import annotations

from pathlib import Path

import pytest

from atomsep.cli.main import main
from atomsep.experiments.machine import Machine
from atomsep.experiments.registry import find_experiment, run_key
from atomsep.experiments.training import train
from atomsep.report.faithful import Point, Row, read_csv


def faithful(*arguments: object) -> int:
    with pytest.raises(SystemExit) as exit:
        main(["faithful", *map(str, arguments)])
    assert isinstance(exit.value.code, int)
    return exit.value.code


def finished(name: str, root: Path, *methods: str) -> Path:
    for method in methods:
        experiment = find_experiment(name)
        key = run_key(experiment, method, 0, ["epochs=1"], tiny=True)
        train(experiment, key, root, Machine(device="cpu", tensorboard=False))
    return root


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return finished("pets", tmp_path_factory.mktemp("runs"), "atom", "plain")


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")


def test_all_runs_of_a_folder(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert faithful(runs, "--images", 3, "--out", tmp_path / "out") == 0
    printed = capsys.readouterr().out
    assert (
        "### Pets (tiny), atom, weight 0.2, 1 seed\n\n| map | deletion ↓ | insertion ↑ |" in printed
    )
    assert "Pets (tiny), cross-entropy alone, 1 seed" in printed
    assert "│" not in printed
    assert f"are in {tmp_path / 'out'}" in printed
    rows = read_csv(tmp_path / "out" / "faithful.csv", Row)
    points = read_csv(tmp_path / "out" / "faithful_curves.csv", Point)
    assert {row.images for row in rows} == {3}
    assert len(rows) == 2 * 2 * 10
    assert len(points) == 2 * 2 * 10 * 17
    for row in rows:
        assert f"{row.mean:.3f}" in printed
        curve = [
            point
            for point in points
            if (point.method, point.map, point.curve) == (row.method, row.map, row.measure)
        ]
        inner = sum(point.mean for point in curve[1:-1])
        area = (inner + (curve[0].mean + curve[-1].mean) / 2) / 16
        assert row.mean == pytest.approx(area, abs=1e-4)


def test_what_cannot_be_measured_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert faithful(tmp_path / "nowhere") == 1
    assert "there is no finished run under" in capsys.readouterr().err
    runs = finished("synthetic", tmp_path, "atom")
    assert faithful(runs, "--images", 4) == 1
    assert "a run of synthetic, which does not classify images" in capsys.readouterr().err


def test_without_captum_its_maps_are_left_out_and_named(
    runs: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("atomsep.importance.rivals.has_captum", lambda: False)
    [plain] = runs.glob("*/plain-*")
    assert faithful(plain, "--images", 2, "--out", tmp_path / "out") == 0
    printed = capsys.readouterr().out
    assert "pip install 'atomsep[faithful]'" in printed
    assert "integrated gradients" not in printed.split("atomsep[faithful]")[1]
