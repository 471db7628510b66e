"""The demo from the command line, at toy size."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from atomsep.experiments import demo, search
from atomsep.experiments.training import METHODS, Setting, train

TOY = ["--epochs", "2", "--samples", "200"]
FIGURES = ["accuracy.png", "charge.png", "energy.png", "latent.png"]


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_demo_writes_figures_and_results(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert demo.main(["--out", str(tmp_path), "--seeds", "2", *TOY]) == 0
    assert files(tmp_path) == sorted([*FIGURES, "results.csv", "results.json", "results.jsonl"])
    for name in FIGURES:
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")

    report = json.loads((tmp_path / "results.json").read_text())
    assert report["configuration"]["epochs"] == 2
    assert report["configuration"]["train_samples"] == 200
    setting = Setting(epochs=2, train_samples=200)
    for line in report["seeds"]:
        for method in METHODS:
            assert line["accuracy"][method] == train(setting, line["seed"], method).accuracy
    rows = list(csv.DictReader((tmp_path / "results.csv").read_text().splitlines()))
    assert [int(row["seed"]) for row in rows] == [0, 1]
    for row, line in zip(rows, report["seeds"], strict=True):
        assert {method: float(row[method]) for method in METHODS} == line["accuracy"]
    differences = [float(row["difference"]) for row in rows]
    assert report["difference"]["difference"] == pytest.approx(sum(differences) / 2)

    printed = capsys.readouterr().out
    for words in ("2 seeds trained", "paired difference", "95 % confidence interval", "p value"):
        assert words in printed


def test_one_seed_has_no_interval(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(demo, "write_figures", lambda *_: [])
    assert demo.main(["--out", str(tmp_path), "--seeds", "1", *TOY]) == 0
    assert "confidence interval" not in capsys.readouterr().out
    assert json.loads((tmp_path / "results.json").read_text())["difference"]["p_value"] is None


def test_an_interrupted_run_goes_on_and_equals_an_unbroken_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    command = ["--seeds", "2", *TOY, "--out"]
    assert demo.main([*command, str(whole)]) == 0

    trained = []

    def counted(setting, seed, method, on_epoch):
        trained.append(seed)
        return train(setting, seed, method, on_epoch)

    def interrupted(setting, seed, method, on_epoch):
        if (seed, method) == (1, "atom modeling"):
            raise KeyboardInterrupt
        return counted(setting, seed, method, on_epoch)

    monkeypatch.setattr(demo, "train", interrupted)
    assert demo.main([*command, str(broken)]) == 130
    assert "Stopped after 1 of 2 seeds" in capsys.readouterr().out
    assert files(broken) == ["results.csv", "results.json", "results.jsonl"]

    assert trained == [0, 0, 1]

    trained.clear()
    monkeypatch.setattr(demo, "train", counted)
    assert demo.main([*command, str(broken)]) == 0
    assert "1 of 2 seeds were finished before" in capsys.readouterr().out
    assert trained == [1, 1]
    for name in files(whole):
        assert (whole / name).read_bytes() == (broken / name).read_bytes(), name

    trained.clear()
    monkeypatch.setattr(demo, "write_figures", lambda *_: [])
    assert demo.main([*command, str(broken), "--fresh"]) == 0
    assert trained == [0, 0, 1, 1]


def test_search_takes_the_best_on_validation_seeds(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With made-up accuracies, of which those at weight 5 are best."""
    seeds = set()

    class Made:
        def __init__(self, setting: Setting, seed: int, method: str) -> None:
            seeds.add(seed)
            best = method == "atom modeling" and setting.weight == 5.0
            self.accuracy = 0.8 + 0.1 * best + 0.001 * (seed % 3)

    monkeypatch.setattr(search, "train", Made)
    assert demo.main(["--search", "--neighbours"]) == 0
    printed = capsys.readouterr().out
    assert "Chosen: weight 5" in printed
    assert "Adam" in printed
    assert seeds == set(range(100, 120)), "the seeds that the demo reports are off limits"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--seeds", "0"], "--seeds: must be at least 1, not 0"),
        (["--seeds", "two"], "--seeds: must be a whole number, not 'two'"),
        (["--epochs", "-3"], "--epochs: must be at least 1, not -3"),
        (["--samples", "1"], "--samples: must be at least 2, not 1"),
        (["--weight", "-1"], "--weight: must be at least 0, not -1"),
        (["--weight", "nan"], "--weight: must be at least 0, not nan"),
        (["--learning-rate", "0"], "--learning-rate: must be above 0, not 0"),
    ],
)
def test_bad_arguments_get_a_sentence(
    arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit_:
        demo.main(arguments)
    assert exit_.value.code == 2
    assert sentence in capsys.readouterr().err


def test_files_in_the_way_get_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    in_the_way = tmp_path / "file"
    in_the_way.write_text("")
    assert demo.main(["--out", str(in_the_way), *TOY]) == 1
    assert "The demo cannot go on" in capsys.readouterr().err
    (tmp_path / "results.jsonl").write_text("nonsense\n")
    assert demo.main(["--out", str(tmp_path), *TOY]) == 1
    assert "line 1 of" in capsys.readouterr().err
