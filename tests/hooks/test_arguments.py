"""Natural mistakes in calling attach get a sentence."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torchvision
from small_models import mlp
from torch import Tensor, nn

import atomsep
from atomsep import AtomLoss


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"loss": 0.2}, r"third argument is the loss.*not 0.2; for the weight, pass weight=0.2"),
        ({"loss": AtomLoss}, r"write AtomLoss\(\) with parentheses"),
        ({"loss": nn.CrossEntropyLoss()}, r"must be an AtomLoss or None, not CrossEntropyLoss"),
        ({"weight": "0.1"}, r"weight must be a number, not '0.1' \(str\)"),
        ({"weight": None}, "weight must be a number, not None"),
        ({"weight": True}, r"weight must be a number, not True \(bool\)"),
        ({"weight": torch.ones(2)}, r"weight must be a number, not tensor\(\[1., 1.\]\)"),
        ({"weight": np.ones(2)}, r"weight must be a number, not array\(\[1., 1.\]\)"),
        ({"watch_gradients": "no"}, "watch_gradients must be True or False, not 'no'"),
        ({"watch_gradients": None}, "watch_gradients must be True or False, not None"),
        ({"target": 0}, r"dotted name of a layer.*not 0; did you mean '0'\?"),
        ({"target": ["0", 7]}, r"a list of these, not 7$"),
        ({"target": None}, "not None"),
        ({"mask": torch.ones(2, 3)}, r"mask must be None, False, .* not a tensor: each batch"),
        ({"mask": True}, "mask must be None, False, .* not True"),
    ],
)
def test_arguments_of_the_wrong_kind(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        atomsep.attach(mlp(), **{"target": "0", **arguments})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"runs": "all"}, """runs must be "last", "mean" or None, not 'all'"""),
        ({"missing": 0}, """missing must be "error" or "zero", not 0"""),
        ({"in_eval": True}, """in_eval must be "error" or "zero", not True"""),
        ({"target": []}, "an empty list; name at least one layer"),
    ],
)
def test_choices_that_do_not_exist(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        atomsep.attach(mlp(), **{"target": "0", **arguments})


@pytest.mark.filterwarnings("ignore:.torch.jit")
def test_what_is_not_a_model() -> None:
    for model, message in [
        (nn.Linear, r"must be a torch.nn.Module, not .*Linear.*; build it first: Linear\(\.\.\.\)"),
        ("resnet18", r"not 'resnet18'; build it first, for example timm.create_model"),
        (None, "must be a torch.nn.Module, not None"),
        (torch.jit.script(mlp()), "attach to the model that torch.jit.script was given"),
    ]:
        with pytest.raises(TypeError, match=message):
            atomsep.attach(model, "0")  # type: ignore[arg-type]


def test_arguments_in_the_wrong_order() -> None:
    with pytest.raises(TypeError, match=r"not '1.bn2'; the model comes first: attach\(model, '1.b"):
        atomsep.attach("1.bn2", mlp())  # type: ignore[arg-type]


@pytest.mark.parametrize("role", ["charge", "position"])
def test_a_learned_map_that_does_not_fit_the_layer(role: str) -> None:
    x = torch.randn(6, 5, 3)
    atomsep.attach(model := mlp(), "0", AtomLoss(**{role: nn.Linear(9, 1)}))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=rf"the {role} map .*\(6, 5, 8\), torch.float32.*mat1"):
        model(x)
    atomsep.attach(model := mlp(), "0", AtomLoss(**{role: nn.Linear(8, 1)}))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=rf"the {role} map .* torch.float64.*dtype"):
        model.double()(x.double())


def test_a_weight_may_be_a_tensor() -> None:
    attachment = atomsep.attach(mlp(), "0", weight=torch.tensor(0.5))  # type: ignore[arg-type]
    assert attachment.weight == 0.5


def test_whether_to_watch_may_be_what_a_comparison_gives() -> None:
    attachment = atomsep.attach(mlp(), "0", watch_gradients=np.int64(3) < 10)  # type: ignore[arg-type]
    assert attachment.watch_gradients is True
    attachment.watch_gradients = torch.tensor(30) < 10  # type: ignore[assignment]
    assert attachment.watch_gradients is False
    with pytest.raises(TypeError, match="must be True or False, not 'yes'"):
        attachment.watch_gradients = "yes"  # type: ignore[assignment]


# A layer without tokens


def test_the_nearest_layer_with_tokens_is_named() -> None:
    model = torchvision.models.resnet18(num_classes=5)
    atomsep.attach(model, "fc")
    with pytest.raises(ValueError, match=r"\(2, 5\), which has no token axis.*'layer4.1.bn2'$"):
        model(torch.randn(2, 3, 64, 64))


def test_a_layer_is_not_its_own_nearest() -> None:
    class Pooling(nn.Conv1d):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x).mean(2)

    model = nn.Sequential(nn.Conv1d(3, 8, 3), Pooling(8, 8, 3))
    atomsep.attach(model, "1")
    with pytest.raises(
        ValueError, match=r"\(5, 8\), .* The nearest one that ran before it is '0'$"
    ):
        model(torch.randn(5, 3, 20))


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (nn.Conv1d(3, 8, 3), (3, 20)),
        (nn.Conv2d(3, 8, 3), (3, 9, 9)),
        (nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU()), (3, 9, 9)),
        (nn.ConvTranspose3d(3, 8, 3), (3, 4, 4, 4)),
    ],
)
def test_a_sample_without_a_batch_axis(layer: nn.Module, shape: tuple[int, ...]) -> None:
    model = nn.Sequential(layer)
    attachment = atomsep.attach(model, "0")
    with pytest.raises(ValueError, match=r"its input has no axis for the samples.* model\(x\[None"):
        model(torch.randn(shape))
    model(torch.randn(2, *shape))
    assert len(attachment.importance) == 2


def test_a_convolution_in_front_of_tokens_has_its_batch_axis() -> None:
    class Patches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Conv2d(3, 8, 4, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.embed(x).flatten(2).mT  # type: ignore[no-any-return]

    model = nn.Sequential(Patches())
    attachment = atomsep.attach(model, "0")
    model(torch.randn(2, 3, 8, 8))
    assert attachment.importance.shape == (2, 4)


def test_the_nearest_linear_layer_with_tokens_is_named() -> None:
    model = mlp()
    atomsep.attach(model, "3")
    with pytest.raises(ValueError, match=r"The nearest one that ran before it is '0'$"):
        model(torch.randn(2, 5, 3))
    with torch.no_grad(), pytest.raises(ValueError, match=r"\(M, H, W, C\), \(L, M, C\)$"):
        model(torch.randn(2, 5, 3))  # nothing is known without a graph


# Layers that start at zero


def test_norms_that_start_at_zero_are_not_taken_for_rectified() -> None:
    import timm

    torch.manual_seed(0)
    model = timm.create_model("resnet18", num_classes=5)
    attachment = atomsep.attach(model, "layer1.1.bn2", weight=1.0)
    assert (model.layer1[1].bn2.weight == 0).all()
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):  # warnings are errors
        task = model(torch.randn(4, 3, 32, 32)).logsumexp(1).mean()
        optimiser.zero_grad()
        (task + attachment.loss()).backward()
        optimiser.step()
    assert attachment.stats["electrons"] > 0


def test_a_layer_that_stays_at_zero_is_noticed() -> None:
    model = nn.Sequential(nn.Linear(3, 8), nn.ReLU())
    nn.init.zeros_(model[0].weight)
    nn.init.zeros_(model[0].bias)
    attachment = atomsep.attach(model, "0")
    for _ in range(32):
        model(torch.randn(4, 5, 3))
        attachment.loss()
    model(torch.randn(4, 5, 3))
    with pytest.warns(atomsep.AtomWarning, match="gives nothing but zeros"):
        attachment.loss()
