"""The benchmarks of the large experiments start and finish, at a toy size on the CPU."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from benchmarks import imagenet, record, styleswin


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
    settings = ("size=64", "width=8", "z=8", "r1_every=1")
    words = [word for each in settings for word in ("--set", each)]
    if dry:
        words.append("--dry")
    start(styleswin, monkeypatch, "--batch", "2", "--turns", "1", "--precision", "32-true", *words)
    assert "overhead_percent" in capsys.readouterr().out
    assert results.exists() != dry


@pytest.mark.slow
def test_images_per_second_of_imagenet(
    results: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """What is compiled runs uncompiled here: compiling a ResNet-50 takes minutes on a CPU."""
    for number in range(12):
        file = tmp_path / "images" / ("val" if number < 4 else "train") / "ab"[number % 2]
        file.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (40, 40), (20 * number, 0, 0)).save(file / f"{number}.jpg")
    small = ["--image", "32", "--batch", "4", "--workers", "0", "--device", "cpu", "--dry"]
    torch.compiler.set_stance("force_eager")
    try:
        start(imagenet, monkeypatch, "--folder", str(tmp_path / "images"), *small)
    finally:
        torch.compiler.set_stance("default")
    printed = capsys.readouterr().out
    assert printed.count("'images_per_second'") == 6
    assert not results.exists()
