"""The benchmarks of the large experiments start and finish, at a toy size on the CPU."""

from __future__ import annotations

import csv
import json
import os
import signal
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from PIL import Image

from benchmarks import imagenet, imagenet_start, record, styleswin, sweep

TOY = [
    *("--batch", "2", "--precision", "32-true", "--set", "size=64", "--set", "width=8"),
    *("--set", "z=8"),
]
"""Options for which a step of StyleSwin takes a moment."""


@pytest.fixture(autouse=True)
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where rows would be written."""
    folder = tmp_path / "results"
    monkeypatch.setattr(record, "FOLDER", folder)
    return folder


def start(module: Any, monkeypatch: pytest.MonkeyPatch, *words: str) -> None:
    monkeypatch.setattr(sys, "argv", [module.__name__, *words])
    module.main()


@pytest.mark.parametrize("dry", [True, False])
def test_a_step_of_styleswin(
    dry: bool, results: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [*TOY, "--turns", "1", "--set", "r1_every=1"]
    if dry:
        words.append("--dry")
    start(styleswin, monkeypatch, *words)
    said = capsys.readouterr()
    assert "overhead_percent" in said.out
    assert results.exists() != dry
    names = [*styleswin.CONTENDERS]
    assert [line.rpartition(": ")[0] for line in said.err.splitlines()[len(names) :]] == [
        f"batch 2, {which}, {name}" for which in ("warm-up", "turn 1 of 1") for name in names
    ]


def test_a_short_turn_counts_the_penalty_as_seldom_as_it_comes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its step takes 9 seconds, and the others 1: (9 + 15) / 16 in every turn."""
    clock = [0.0]
    monkeypatch.setattr(styleswin.time, "perf_counter", lambda: clock[0])

    def step(batch: int, progress: float) -> None:
        clock[0] += 9 if progress == 0 else 1

    for steps in (2, 5, 16):
        task: Any = SimpleNamespace(
            settings=SimpleNamespace(epochs=3, r1_every=16),
            steps=steps,
            batches=lambda epoch, first, steps=steps: range(steps),
            step=step,
        )
        assert styleswin.turn(task) == pytest.approx(1500)
    task.settings.r1_every = task.steps = 1
    task.batches = lambda epoch, first: [0]
    assert styleswin.turn(task) == 9000


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_benchmark_that_is_stopped_records_its_turns(
    number: int, results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = iter([9.0, 9.0, 9.0, 5.0, 6.0, 5.5, 7.0])
    before = signal.getsignal(signal.SIGTERM)
    made: list[int] = []
    monkeypatch.setattr(styleswin, "make_task", lambda method, settings, steps: made.append(steps))

    def turn(task: Any) -> float:
        taken = next(times, None)
        if taken is None:
            os.kill(os.getpid(), number)
        return taken or 0.0

    monkeypatch.setattr(styleswin, "turn", turn)
    start(styleswin, monkeypatch, *TOY, "--steps", "3")
    with open(results / "styleswin.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    *turns, alone = rows
    assert [(row["turns"], row["ms"]) for row in turns] == [
        *(("2", "6.0"), ("1", "6.0"), ("1", "5.5"))
    ]
    assert made == [3, 3, 3]
    assert {row["steps"] for row in turns} == {"3"}
    assert alone["step"] == "the loss alone"
    assert float(alone["overhead_percent"]) == pytest.approx(
        100 * float(alone["ms"]) / 6, abs=0.01, rel=0.01
    )
    assert signal.getsignal(signal.SIGTERM) == before
    with pytest.raises(SystemExit, match="Stopped before the first turn ended"):
        start(styleswin, monkeypatch, *TOY)


def test_a_single_sample_has_no_pairs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        start(styleswin, monkeypatch, "--batch", "1")
    assert "--batch must be at least 2" in capsys.readouterr().err


@pytest.mark.parametrize("steps", ["1", "17", "-2"])
def test_a_turn_has_a_step_with_and_one_without_the_penalty(
    steps: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        start(styleswin, monkeypatch, *TOY, "--steps", steps)
    assert f"must be from 2 to r1_every, which is 16: {steps}" in capsys.readouterr().err


def two_classes(place: Path) -> Path:
    """A folder with eight images for training and four for evaluation."""
    for number in range(12):
        file = place / "images" / ("val" if number < 4 else "train") / "ab"[number % 2]
        file.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (40, 40), (20 * number, 0, 0)).save(file / f"{number}.jpg")
    return place / "images"


@pytest.mark.slow
def test_images_per_second_of_imagenet(
    results: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """What is compiled runs uncompiled here: compiling a ResNet-50 takes minutes on a CPU."""
    folder = two_classes(tmp_path)
    small = ["--image", "32", "--batch", "4", "--workers", "0", "--device", "cpu", "--dry"]
    torch.compiler.set_stance("force_eager")
    try:
        start(imagenet, monkeypatch, "--folder", str(folder), *small)
    finally:
        torch.compiler.set_stance("default")
    printed = capsys.readouterr().out
    assert printed.count("'images_per_second'") == 6
    assert not results.exists()


def test_an_unknown_contender_is_refused_before_anything_is_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        start(imagenet, monkeypatch, "--folder", str(tmp_path), "--contenders", "plain")
    assert "no contender 'plain'; choose from reference, float32" in capsys.readouterr().err


@pytest.mark.parametrize("variant", imagenet_start.VARIANTS)
def test_the_first_steps_on_imagenette(
    variant: str,
    results: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The last norm of each block starts at 0 where the variant says so."""
    folder = two_classes(tmp_path)
    small = ["--image", "32", "--batch", "4", "--steps", "2", "--seeds", "0", "--dry"]
    words = ["--folder", str(folder), *small, "--variants", variant]
    made: list[Any] = []
    resnet50, zero = imagenet_start.resnet50, imagenet_start.nn.init.zeros_
    monkeypatch.setattr(
        imagenet_start, "resnet50", lambda **given: made.append(resnet50(**given)) or made[0]
    )
    zeroed: list[int] = []
    monkeypatch.setattr(
        imagenet_start.nn.init, "zeros_", lambda each: zeroed.append(id(each)) or zero(each)
    )
    start(imagenet_start, monkeypatch, *words)
    assert f"'variant': '{variant}', 'seed': 0, 'steps': 2" in capsys.readouterr().out
    ours = {id(norm.weight) for name, norm in made[0].named_modules() if name.endswith("bn3")}
    assert len(ours & set(zeroed)) == (16 if "zero-init" in variant else 0)  # blocks
    assert not results.exists()


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_a_sweep_is_compared_with_one_process(
    device: str, results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a stand-in for the commands: 28 runs in 280 s, and 3 of 20 epochs in 10 s."""
    asked: list[tuple[str, ...]] = []

    def atomsep(source: Path, *words: str) -> float:
        asked.append(words)
        if words[0] == "sweep":
            return 280.0
        out = Path(words[words.index("--out") + 1], "some", "run")
        out.mkdir(parents=True)
        ends = [4.0, 6.5, 9.0, 9.5]  # the first epoch starts, the last line evaluates
        lines = [json.dumps({"seconds": end}) for end in ends]
        (out / "metrics.jsonl").write_text("\n".join(lines))
        return 10.0

    monkeypatch.setattr(sweep, "atomsep", atomsep)
    data, folder = tmp_path / "data", tmp_path / "imagenette-80"
    folder.mkdir()
    words = ["--before", str(tmp_path), "--data", str(data), "--only", "Imagenette"]
    with pytest.raises(SystemExit):
        start(sweep, monkeypatch, *words)
    start(sweep, monkeypatch, *words, "--imagenette", str(folder), "--device", device)

    swept, alone = asked
    assert ("--mps" in swept) == ("graph=true" in swept) == (device == "cuda")
    for words_of in asked:
        assert words_of[words_of.index("--device") + 1] == device
        assert f"folder={folder}" in words_of
    assert "--mps" not in alone
    assert "epochs=20" in swept
    assert "epochs=3" in alone
    with (results / "sweep.csv").open(newline="") as file:
        [row] = csv.DictReader(file)
    assert float(row["one_run_before_s"]) == 10 + 17 * 2.5
    assert float(row["sweep_s"]) == 280
    assert float(row["runs_per_hour"]) == 360
    assert float(row["ratio"]) == round(360 / (3600 / 52.5), 1)
    assert ("graph=true" in row["settings"]) == (device == "cuda")
