"""Functions of a user's own: what they may be, and what is said of what they are not."""

from __future__ import annotations

from pathlib import Path

import pytest

from atomsep.experiments.entry_points import call_entry_point, is_module
from atomsep.experiments.errors import ExperimentError
from atomsep.experiments.images.folders import _returned
from atomsep.experiments.images.models import check_image_model, make_image_model

MODULE = """
from PIL import Image
from torch import nn
import torch

table = {}
def fails(**arguments): raise LookupError("no such thing")
def takes_nothing(): return None
def gives_text(num_classes): return "a model"

class Odd(nn.Module):
    def __init__(self, num_classes): super().__init__()
    def forward(self, images, second): return images

class Tensors:
    targets, classes = [0, 1], ["a", "b"]
    def __len__(self): return 2
    def __getitem__(self, index): return torch.zeros(3, 8, 8), index

class Raising(Tensors):
    def __getitem__(self, index): raise RuntimeError("not today")
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a module of the user's."""
    name = f"own_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    return name


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("table", "model={own}:table must be a function, not dict"),
        (
            "fail",
            "there is no function 'fail' in {own}; did you mean 'fails'? Available: fails, tak",
        ),
        ("fails", "model={own}:fails failed (LookupError: no such thing); --debug shows where"),
        ("takes_nothing", "model={own}:takes_nothing failed (TypeError: "),
        ("gives_text", "model={own}:gives_text must return a torch.nn.Module, not str"),
    ],
)
def test_a_model_of_the_wrong_kind_is_named(own: str, function: str, message: str) -> None:
    with pytest.raises(ExperimentError) as error:
        make_image_model(f"{own}:{function}", 10)
    assert str(error.value).startswith(message.format(own=own))


def test_what_a_module_imports_is_not_offered(own: str) -> None:
    with pytest.raises(ExperimentError) as error:
        call_entry_point("model", f"{own}:nope")
    _, offered = str(error.value).split("Available: ")
    names = ["fails", "takes_nothing", "gives_text", "Odd", "Tensors", "Raising"]
    assert offered.split(", ") == names, "neither torch and nn nor the table"
    with pytest.raises(ExperimentError, match="did you mean 'Linear'?"):
        call_entry_point("model", "torch.nn:Linaer")  # of a module inside torch.nn


@pytest.mark.parametrize("function", ["fails", "table"])
@pytest.mark.parametrize(("key", "start"), [("model", "model="), ("", "")])
def test_only_settings_have_an_equals_sign(own: str, function: str, key: str, start: str) -> None:
    with pytest.raises(ExperimentError) as error:
        call_entry_point(key, f"{own}:{function}")
    assert str(error.value).startswith(f"{start}{own}:{function} ")
    with pytest.raises(ExperimentError) as error:
        call_entry_point(key, "no_such_module:make")
    assert str(error.value).startswith(f"{start}no_such_module:make: the module cannot be imported")


def test_modules_are_known_without_being_imported(
    own: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "raises.py").write_text("raise RuntimeError")
    (tmp_path / "folder").mkdir()
    assert is_module(own)
    assert is_module("raises")
    assert not is_module("folder")
    assert not is_module("raises.inner")


def test_a_model_that_cannot_be_called_is_named(own: str) -> None:
    model = make_image_model(f"{own}:Odd", 10)
    with pytest.raises(ExperimentError, match="cannot take images of 32 x 32 pixels .*'second'"):
        check_image_model(f"{own}:Odd", model, 32, 10)


@pytest.mark.parametrize(
    ("kind", "reason"), [("Tensors", "AttributeError: "), ("Raising", "RuntimeError: not today")]
)
def test_a_data_set_of_other_items_is_named(own: str, kind: str, reason: str) -> None:
    dataset = call_entry_point("folder", f"{own}:{kind}")
    with pytest.raises(ExperimentError) as error:
        _returned("entry", [dataset, dataset], validation=False)
    assert "whose items are a Pillow image and a label" in str(error.value)
    assert reason in str(error.value)


def test_interrupts_are_not_errors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "interrupted.py").write_text("def make(): raise KeyboardInterrupt\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(KeyboardInterrupt):
        call_entry_point("model", "interrupted:make")
