"""Warnings about a layer on the command line: sentences, in its own words."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
from PIL import Image

from atomsep.cli.main import main, plain_warnings


@pytest.mark.filterwarnings("default::atomsep.AtomWarning")
def test_a_rectified_layer(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for number in range(10):
        file = Path("mine", "ab"[number % 2], f"{number}.png")
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (20, 20), (25 * number, 0, 0)).save(file)
    settings = ["folder=mine", "epochs=1", "batch=4", "image=16", "stages=1", "stem=cifar"]
    changes = [part for each in (*settings, "layer=relu") for part in ("--set", each)]
    with pytest.raises(SystemExit) as end:
        main(["train", "own-images", "--device", "cpu", "--method", "atom", *changes])
    assert end.value.code == 0
    [line] = [line for line in capsys.readouterr().err.splitlines() if "'relu'" in line]
    assert line.startswith("atomsep: layer 'relu' gives no negative scores")
    assert line.endswith("Choose another layer with --set layer=NAME")


def test_other_warnings_are_left_alone() -> None:
    with pytest.warns(UserWarning, match="of another library"), plain_warnings():
        warnings.warn("of another library", UserWarning, stacklevel=1)
