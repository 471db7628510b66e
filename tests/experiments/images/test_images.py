"""Image classification: every method trains, seeds decide, augmentation is paired."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from tiny_runs import run, train_and_check
from torch import Tensor

from atomsep.experiments.errors import ExperimentError
from atomsep.experiments.images.augmentation import Augmentation
from atomsep.experiments.images.build import metrics
from atomsep.experiments.images.experiments import (
    FLOWERS,
    IMAGENET,
    IMAGES,
    OWN_IMAGES,
    PETS,
)
from atomsep.experiments.images.models import check_image_model, make_image_model
from atomsep.experiments.machine import Machine, make_fabric
from atomsep.experiments.registry import run_key
from atomsep.experiments.settings import override
from atomsep.experiments.task import Context, Experiment
from atomsep.experiments.trained import load_run

PAIRS = [(experiment, method) for experiment in IMAGES for method in experiment.methods]


def make_context(method: str = "plain", workers: int = 0, **changes: Any) -> Context:
    settings = override(run_key(FLOWERS, method, 0, tiny=True).settings, changes)
    fabric = make_fabric(Machine(device="cpu"), "32-true")
    return Context(settings, method, 0, fabric, Path("data"), tiny=True, workers=workers)


def first_batches(context: Context, count: int = 2) -> list[Any]:
    batches = iter(FLOWERS.build(context).batches(0, 0))
    return [next(batches) for _ in range(count)]


@pytest.mark.parametrize(
    ("experiment", "method"), PAIRS, ids=lambda value: getattr(value, "name", value)
)
def test_every_method_trains_in_tiny_form(
    experiment: Experiment, method: str, tmp_path: Path
) -> None:
    scores = train_and_check(experiment, method, tmp_path)
    assert set(scores) == {"top1", "top5", "entropy", "ece", "nll"}
    assert 0 <= scores["top1"] <= scores["top5"] <= 1
    assert 0 <= scores["entropy"] <= math.log(10) + 1e-6
    assert experiment.metric in scores


def test_a_seed_repeats_and_another_differs(tmp_path: Path) -> None:
    first, _ = run(PETS, "atom", tmp_path / "a")
    again, _ = run(PETS, "atom", tmp_path / "b")
    other, _ = run(PETS, "atom", tmp_path / "a", seed=1)
    assert first["metrics"] == again["metrics"]
    assert first["last_epoch"]["cross-entropy"] == again["last_epoch"]["cross-entropy"]
    assert first["last_epoch"]["cross-entropy"] != other["last_epoch"]["cross-entropy"]


def test_methods_start_from_the_same_weights_and_see_the_same_images() -> None:
    plain, simclr = FLOWERS.build(make_context()), FLOWERS.build(make_context("simclr"))
    states = [task.parts()["model"].state_dict() for task in (plain, simclr)]
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    for one, other in zip(plain.batches(1, 2), simclr.batches(1, 2), strict=True):
        assert torch.equal(one.inputs, other.inputs)
        assert torch.equal(one.labels, other.labels)
        assert one.second is None
        assert other.second.shape == one.inputs.shape
        assert not torch.equal(other.second, other.inputs)


def test_augmentation_is_the_same_for_any_number_of_workers() -> None:
    here = first_batches(make_context("simclr"))
    there = first_batches(make_context("simclr", workers=2))
    for one, other in zip(here, there, strict=True):
        assert torch.equal(one.inputs, other.inputs)
        assert torch.equal(one.second, other.second)


def gradient_image() -> Image.Image:
    return Image.linear_gradient("L").convert("RGB").resize((120, 90))


def test_colour_is_added_to_the_crop_and_the_flip() -> None:
    """Both recipes crop and flip alike; only the second changes colours."""
    red = Image.new("RGB", (64, 64), (200, 40, 40))
    plain, colour = Augmentation("crop-flip", 96, 0.35), Augmentation("crop-flip-colour", 96, 0.35)

    def hues(transform: Augmentation) -> list[Tensor]:
        keys = [(0, "augmentation", 0, index) for index in range(40)]
        return [transform(red, key).mean((1, 2)) for key in keys]

    assert all(torch.allclose(each, hues(plain)[0], atol=1e-5) for each in hues(plain))
    grey = [
        each * torch.tensor((0.229, 0.224, 0.225)) + torch.tensor((0.485, 0.456, 0.406))
        for each in hues(colour)
    ]
    share = sum(bool(torch.allclose(each, each.mean(), atol=0.01)) for each in grey) / 40
    assert 0.05 < share < 0.45  # a fifth is grey
    assert len({tuple(each.round(decimals=3).tolist()) for each in grey}) > 20


def test_evaluation_takes_the_middle() -> None:
    transform = Augmentation("none", 56)
    image = gradient_image()
    first = transform(image, (0, "augmentation", 0, 0))
    assert first.shape == (3, 56, 56)
    assert torch.equal(first, transform(image, (1, "augmentation", 2, 3)))
    resized = torch.linspace(0, 1, 64)[4:60]  # the short side becomes 64, and 56 of it stay
    rows = first.mean(2)[0] * 0.229 + 0.485
    assert torch.allclose(rows, resized, atol=0.03)


def test_metrics_leave_out_a_top_5_that_says_nothing() -> None:
    assert set(metrics(5)) == {"top1", "entropy", "ece", "nll"}
    assert set(metrics(6)) == {"top1", "top5", "entropy", "ece", "nll"}


def test_imagenet_follows_pytorchs_example() -> None:
    settings = run_key(IMAGENET, "plain", 0).settings
    chosen = [getattr(settings, name) for name in ("epochs", "batch", "learning_rate", "momentum")]
    assert chosen == [90, 256, 0.1, 0.9]
    assert (settings.weight_decay, settings.schedule, settings.crop_scale) == (1e-4, "thirds", 0.08)
    assert (settings.model, settings.image, settings.warmup) == ("resnet50", 224, 0)


def test_models_by_name_have_the_published_sizes() -> None:
    def count(model: Any) -> int:
        return sum(parameter.numel() for parameter in model.parameters())

    assert count(make_image_model("resnet18", 10, stem="cifar")) == 11_173_962
    assert count(make_image_model("resnet50", 1000)) == 25_557_032


def test_stem_and_stages_keep_the_layers_names() -> None:
    model = make_image_model("resnet18", 3, stem="cifar", stages=1)
    assert {"layer1.1.bn2", "layer4"} <= {name for name, _ in model.named_modules()}
    shapes = []
    model.layer1.register_forward_hook(lambda module, args, output: shapes.append(output.shape))
    assert model(torch.zeros(2, 3, 32, 32)).shape == (2, 3)
    assert shapes[0] == (2, 64, 32, 32)  # nothing is pooled before


def test_the_check_of_a_model_leaves_no_trace() -> None:
    model = make_image_model("resnet18", 3, stages=1)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    check_image_model("resnet18", model, 32, 3)
    assert model.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


OWN_MODEL = """
from torch import nn

def make(num_classes):
    return nn.Sequential(nn.Conv2d(3, 8, 3, 2), nn.BatchNorm2d(8), nn.ReLU(),
                         nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, num_classes))

def wrong_width(num_classes):
    return nn.Sequential(nn.Flatten(), nn.LazyLinear(num_classes + 1))

def no_model(num_classes):
    return num_classes
"""


@pytest.fixture
def own_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module in the current folder, which is not on the path."""
    name = f"own_{abs(hash(str(tmp_path)))}"
    (tmp_path / f"{name}.py").write_text(OWN_MODEL)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", list(__import__("sys").path))
    return name


def test_a_model_of_ones_own_trains(own_module: str, tmp_path: Path) -> None:
    """In the tiny form too, whose one stage is for ResNets."""
    for number, stages in enumerate(((), ("stages=4",))):
        changes = (f"model={own_module}:make", "layer=1", *stages)
        result, on_disk = run(OWN_IMAGES, "atom", tmp_path / str(number), *changes)
        assert result["metrics"]["top1"] >= 0
        assert len(load_run(on_disk.folder).model) == 6


@pytest.mark.filterwarnings("ignore:Lazy modules")
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["model=resnet81"], "no model 'resnet81' in torchvision; did you mean 'resnet"),
        (["layer=layer1.1.bn9"], "layer 'layer1.1.bn9' matches nothing; did you mean 'layer1.1.bn"),
        (["model=mobilenet_v3_small"], "layer 'layer1.1.bn2' matches nothing"),
        (
            ["model=mobilenet_v3_small", "stages=2"],
            "stem and stages apply only to torchvision's ResNets",
        ),
        (["model=alexnet"], "model=alexnet cannot take images of 32 x 32 pixels"),
        (["image=4"], "image must be at least 16, not 4"),
        (["crop_scale=1.5"], "crop_scale must be at most 1"),
        (["augmentation=crop"], "no choice 'crop' for augmentation; did you mean 'crop-flip'?"),
        (["model=no_such_module:make"], "the module cannot be imported (No module named"),
        (["model=torch.nn:Linar"], "no function 'Linar' in torch.nn; did you mean 'Linear'?"),
        (["model={own}:no_model"], "must return a torch.nn.Module, not int"),
        (["model={own}:wrong_width"], "returns (2, 11) for 2 images"),
    ],
)
def test_bad_settings_are_refused_with_a_sentence(
    changes: list[str], message: str, own_module: str, tmp_path: Path
) -> None:
    with pytest.raises(ExperimentError) as caught:
        run(FLOWERS, "atom", tmp_path, *(change.format(own=own_module) for change in changes))
    assert message in str(caught.value)
