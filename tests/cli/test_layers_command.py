"""`atomsep layers MODEL`, for every kind of name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from by_hand import bert

from atomsep.cli.main import main

OWN = """
import torch
from torch import nn

def make():
    return nn.Sequential(nn.Linear(3, 8), nn.ReLU()), torch.randn(5, 7, 3)

def only_a_model():
    return nn.Linear(3, 8)

def without_tokens():
    return nn.Linear(3, 8), torch.randn(5, 3)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a module of the user's own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    (tmp_path / "own_layers.py").write_text(OWN)
    return tmp_path


def run(capsys: pytest.CaptureFixture[str], name: str) -> tuple[int | str | None, str, str]:
    with pytest.raises(SystemExit) as exit:
        main(["layers", name])
    said = capsys.readouterr()
    return exit.value.code, said.out, said.err


def test_a_torchvision_name(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    code, out, _ = run(capsys, "squeezenet1_1")
    assert code == 0
    assert "features.3.expand3x3" in out
    assert "channels_first" in out
    assert "Recommended: features.3.expand3x3, the last signed layer of the first block" in out


def test_a_timm_name(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    code, out, _ = run(capsys, "test_vit")
    assert code == 0
    assert "Recommended: blocks.0, the first block" in out


def test_a_hugging_face_folder(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    bert().config.save_pretrained(folder / "tiny")
    code, out, _ = run(capsys, "tiny")
    assert code == 0
    assert "Recommended: encoder.layer.0" in out


@pytest.mark.parametrize("name", ["bert-base-uncased", "someone/bert"])
def test_a_name_of_the_hub(
    capsys: pytest.CaptureFixture[str], folder: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    import transformers

    asked = []

    def from_hub(name: str) -> Any:
        asked.append(name)
        return bert().config

    monkeypatch.setattr(transformers.AutoConfig, "from_pretrained", from_hub)
    code, out, _ = run(capsys, name)
    assert code == 0
    assert asked == [name]
    assert "Recommended: encoder.layer.0" in out


def test_a_misspelt_name_is_not_looked_for_on_the_hub(
    capsys: pytest.CaptureFixture[str], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import transformers

    def from_hub(name: str) -> Any:
        raise AssertionError(name)

    monkeypatch.setattr(transformers.AutoConfig, "from_pretrained", from_hub)
    code, _, errors = run(capsys, "resnet1")
    assert code == 1
    assert "did you mean 'resnet18'?" in errors


def test_the_recommendation_comes_first_and_refused_layers_are_named(
    capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    code, out, _ = run(capsys, "resnet18")
    assert code == 0
    assert out.startswith("Recommended: layer1.0.bn2, the last signed layer of the first block")
    assert "Layers that need arguments to attach: 1 (avgpool); in Python" in out


def test_a_function_of_ones_own(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    code, out, _ = run(capsys, "own_layers:make")
    assert code == 0
    assert "(5, 7, 8)" in out
    assert "rectified" in out
    assert "Recommended: 0, the layer before the first activation" in out


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        (
            "resnet81",
            "there is no model 'resnet81' in torchvision or timm; did you mean 'resnet18'?",
        ),
        ("resnet81", "For a Hugging Face model, write OWNER/NAME"),
        ("qqqq", "there is no model 'qqqq' in torchvision or timm."),
        ("qqqq", "qqqq cannot be loaded from Hugging Face: "),
        ("own_layers:only_a_model", "must return a model and an example batch, not Linear"),
        (
            "own_layers:without_tokens",
            "no layer of this Linear has tokens: the outputs are one vector",
        ),
        (
            "own_layers",
            "own_layers is a module; name the function in it that returns a model and an",
        ),
        ("nope:make", "atomsep: nope:make: the module cannot be imported (No module named 'nope')"),
        ("own_layers:mak", "there is no function 'mak' in own_layers; did you mean 'make'?"),
    ],
)
def test_refusals_are_sentences(
    capsys: pytest.CaptureFixture[str],
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    sentence: str,
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    code, _, errors = run(capsys, name)
    assert code == 1
    assert sentence in errors
    assert "Traceback" not in errors
