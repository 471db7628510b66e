"""A method on a layer: its loss on the tokens, and a model that works as before."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from atomsep.experiments.errors import ExperimentError
from atomsep.experiments.latent import MethodOnLayer
from atomsep.experiments.machine import Machine, make_fabric
from atomsep.experiments.settings import Settings
from atomsep.experiments.task import Context
from atomsep.methods import METHODS, make_method

LABELS = torch.tensor([0, 0, 1, 1, 0, 1])


class Convolutions(nn.Module):
    """Overwrites the layer's output in place, as torchvision's ResNets do."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 4, 3)
        self.norm = nn.BatchNorm2d(4)
        self.drop = nn.Dropout(0.3)
        self.head = nn.Linear(4, 2)

    def forward(self, images: Tensor) -> Tensor:
        hidden = torch.relu_(self.norm(self.conv(self.drop(images))))
        logits: Tensor = self.head(hidden.mean((2, 3)))
        return logits


class Words(nn.Module):
    """Takes a padding mask."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 6)
        self.mix = nn.Linear(6, 6)

    def forward(self, ids: Tensor, attention_mask: Tensor) -> Tensor:
        hidden = self.mix(self.embed(ids)) * attention_mask.unsqueeze(-1)
        return hidden.sum(1)[:, :2]


def build(kind: type[nn.Module]) -> Any:
    torch.manual_seed(0)
    return kind()


def act_on(
    model: nn.Module,
    name: str,
    *,
    layer: str,
    weight: float = 1.0,
    features: int = 0,
    seed: int = 0,
    options: dict[str, Any] | None = None,
    optimiser: torch.optim.Optimizer | None = None,
) -> MethodOnLayer:
    settings = Settings(layer=layer, weight=weight, method=options or {})
    fabric = make_fabric(Machine(device="cpu"), "32-true")
    optimiser = optimiser or torch.optim.SGD(model.parameters(), lr=0.1)
    context = Context(settings, name, seed, fabric, Path("data"))
    return MethodOnLayer(context, model, optimiser, features)


def images() -> Tensor:
    return torch.randn(6, 2, 7, 7, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("name", sorted(METHODS.keys() - {"plain", "mode-seeking"}))
def test_the_loss_and_its_gradient_are_the_methods_on_the_layers_tokens(name: str) -> None:
    model = build(Convolutions)
    on_layer = act_on(model, name, layer="norm", weight=0.7, features=4)
    torch.manual_seed(5)
    model(images())
    loss = on_layer.loss(LABELS, lambda: model(images() + 0.1))
    assert loss is not None
    loss.backward()

    twin = build(Convolutions)
    method = make_method(name, features=4)
    assert method is not None
    torch.manual_seed(5)
    latent = twin.norm(twin.conv(twin.drop(images()))).flatten(2).transpose(1, 2)
    second = None
    if method.second_view is not None:
        second = twin.norm(twin.conv(twin.drop(images() + 0.1))).flatten(2).transpose(1, 2)
    expected = 0.7 * method(latent, LABELS, None, second)
    expected.backward()
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(model.conv.weight.grad, twin.conv.weight.grad, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", ["plain", "hinge-2", "atom"])
def test_the_models_output_stays_the_same(name: str) -> None:
    expected = build(Convolutions).eval()(images())
    model = build(Convolutions).eval()
    act_on(model, name, layer="norm")
    torch.testing.assert_close(model(images()), expected)


def test_vector_quantisation_passes_its_codes_on() -> None:
    model = build(Convolutions).eval()
    on_layer = act_on(model, "vq", layer="norm", features=4, options={"codes": 8})
    seen = []
    model.head.register_forward_pre_hook(lambda module, args: seen.append(args[0]))
    model(images())
    vq: Any = on_layer.method
    latent = model.norm(model.conv(images()))
    codes = vq.codes[torch.cdist(latent.flatten(2).transpose(1, 2), vq.codes).argmin(-1)]
    torch.testing.assert_close(seen[0], codes.relu().mean(1))


def test_padding_has_no_influence() -> None:
    ids = torch.randint(11, (6, 5), generator=torch.Generator().manual_seed(0))
    mask = torch.arange(5) < torch.tensor([[5], [3], [1], [4], [2], [5]])
    losses = []
    for fill in (0, 7):
        model = build(Words)
        on_layer = act_on(model, "hinge-2", layer="mix")
        model(ids.masked_fill(~mask, fill), attention_mask=mask.long())
        losses.append(on_layer.loss(LABELS))
    assert losses[0] is not None
    assert torch.equal(losses[0], losses[1])


def test_the_plain_method_adds_nothing() -> None:
    on_layer = act_on(build(Convolutions), "plain", layer="no such layer")
    assert on_layer.loss(LABELS) is None
    assert on_layer.state_dict() == {}


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("atom", {"layer": "nrm"}, "did you mean 'norm'"),
        ("hinge-1", {"layer": "nrm"}, "did you mean 'norm'"),
        ("hinge-1", {"layer": "*"}, "matches several layers .*, but Hinge acts on one"),
        ("atom", {"layer": "norm", "options": {"nrm": 1}}, "has no option 'nrm'"),
        ("simclr", {"layer": "norm", "options": {"norm": 1}}, "has no option 'norm'"),
    ],
)
def test_what_does_not_fit_is_a_sentence(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ExperimentError, match=message):
        act_on(build(Convolutions), name, **options)


def test_the_state_holds_parameters_and_draws() -> None:
    sampled = {"pairs": "sampled"}
    first, second = (
        act_on(build(Convolutions), "atom", layer="norm", options=sampled) for _ in range(2)
    )
    first.method.criterion.draws = 7  # type: ignore[union-attr]
    second.load_state_dict(first.state_dict())
    assert second.method.criterion.draws == 7  # type: ignore[union-attr]
    codes = [
        act_on(build(Convolutions), "vq", layer="norm", features=4, seed=seed) for seed in (0, 1)
    ]
    assert not torch.equal(codes[0].method.codes, codes[1].method.codes)  # type: ignore[union-attr]
    codes[1].load_state_dict(codes[0].state_dict())
    assert torch.equal(codes[0].method.codes, codes[1].method.codes)  # type: ignore[union-attr]


@pytest.mark.parametrize(("layer", "expected"), [("norm", 4), ("*or*", 4), ("both", 9)])
def test_a_method_learns_the_width_of_its_layer(layer: str, expected: int) -> None:
    model = build(Convolutions)
    model.both = nn.ModuleList([nn.Linear(2, 3), nn.Linear(3, 2)])  # which one is not certain
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    act_on(model, "vq", layer=layer, features=9, optimiser=optimiser)
    [codes] = optimiser.param_groups[1]["params"]
    assert codes.shape == (512, expected)


def test_outputs_that_are_objects_are_kept() -> None:
    class Wrapped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 4)

        def forward(self, tokens: Tensor) -> Any:
            return SimpleNamespace(logits=self.layer(tokens).mean(1))

    model = Wrapped()
    on_layer = act_on(model, "sscl", layer="layer")
    model(torch.randn(3, 5, 3))
    assert on_layer.loss(None) is not None
