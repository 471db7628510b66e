"""Runs of StyleSwin: what they leave, and how they go on after a crash."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from PIL import Image
from tiny_gans import crashing_at, run, saved_models, steps_kept, tiny
from tiny_runs import read_metrics

from atomsep import load_run
from atomsep.experiments.registry import find_experiment
from atomsep.experiments.runs import Run, RunKey

FACES = find_experiment("faces-gan")


def quick(method: str = "plain", *settings: str) -> RunKey:
    """A run in the tiny form whose metrics nobody looks at."""
    few = ("train_samples=12", "samples=4", "features=tiny_gans:Means")
    return tiny(FACES, method, 0, *few, *settings)


def test_a_run_and_what_it_leaves(tmp_path: Path) -> None:
    key = quick("atom", "epochs=2", "evaluate_every=3")
    result = run(key, tmp_path)
    lines = read_metrics(key.folder(tmp_path))
    assert [line["step"] for line in lines] == [3, 6]
    own = {"discriminator", "generator", "consistency", "method"}
    assert all(math.isfinite(line[name]) for line in lines for name in own)
    assert lines[0]["r1"] > 0
    metrics = {"frechet_Means", "precision", "recall"}
    assert set(lines[0]["metrics"]) == metrics | {f"ema_{name}" for name in metrics}
    assert result["files"] == ["samples.png", "importance.png", "atoms.npz"]
    with Image.open(key.folder(tmp_path) / "samples.png") as image:
        assert image.size == (3 * 66 + 2, 3 * 66 + 2)  # 8 samples
    loaded = load_run(key.folder(tmp_path))
    for averaged in (False, True):
        generated = loaded.sample(3, averaged=averaged)
        assert generated.images.shape == (3, 3, 64, 64)
        assert generated.importance.shape == (3, 32, 32)


def test_a_crashed_run_continues_as_if_nothing_had_happened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also in the midst of its falling rates, and between two penalties."""
    key = quick("atom", "epochs=2", "r1_every=2", "decay_from=0.1")
    unbroken = run(key, tmp_path / "unbroken")
    with crashing_at(3, monkeypatch), pytest.raises(MemoryError):
        run(key, tmp_path / "broken", checkpoint_seconds=0)
    assert steps_kept(key, tmp_path / "broken", per_epoch=3) == 3
    again = run(key, tmp_path / "broken")
    assert again["metrics"] == unbroken["metrics"]
    models = [saved_models(key, tmp_path / name) for name in ("broken", "unbroken")]
    assert set(models[0]) == {"generator", "discriminator", "ema"}
    for name, state in models[0].items():
        for entry, value in state.items():
            assert torch.equal(value, models[1][name][entry]), (name, entry)


def test_pictures_are_there_while_a_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Drawn at the first evaluation, and again at the next."""
    key = quick("atom", "epochs=2", "evaluate_every=2")
    folder = key.folder(tmp_path)
    with crashing_at(3, monkeypatch), pytest.raises(MemoryError):
        run(key, tmp_path)
    assert not Run(folder).result.exists()
    first = {name: (folder / name).read_bytes() for name in ("samples.png", "importance.png")}
    run(key, tmp_path)
    for name, drawn in first.items():
        assert (folder / name).read_bytes() != drawn, name
