"""The `forward` that an attached module stores, until it is detached."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from types import MethodType

import pytest
import torch
from small_models import batch
from torch import Tensor, nn

import atomsep


class Layer(nn.Linear):
    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.head = Layer(3, 8), nn.Linear(8, 2)

    def forward(self, x: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        return self.head(self.layer(x).relu_()).mean()


def twice(self: nn.Linear, input: Tensor) -> Tensor:
    return 2 * nn.functional.linear(input, self.weight, self.bias)


def halved(self: Model, x: Tensor, attention_mask: Tensor | None = None) -> Tensor:
    return self.head(self.layer(x).relu()).mean() / 2


@pytest.mark.parametrize(("kind", "forward"), [(Layer, twice), (Model, halved)])
def test_a_class_that_is_patched_later_is_named(
    kind: type, forward: Callable[..., Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The attached model would go on with the forward of before, without a word."""
    model, x = Model(), batch()
    attachment = atomsep.attach(model, "layer", weight=1.0)
    monkeypatch.setattr(kind, "forward", forward)
    model(x)
    message = f"an attached {kind.__name__} that still runs the old forward of its class"
    for ask in (attachment.loss, lambda: attachment.importance, lambda: attachment.stats):
        with pytest.raises(RuntimeError, match=message):
            ask()
    attachment.detach()  # as the message says
    assert not any("forward" in vars(module) for module in model.modules())
    latent = nn.functional.linear(x, *model.layer.parameters()) * (2 if kind is Layer else 1)
    expected = model.head(latent.relu()).mean() / (2 if kind is Model else 1)
    again = atomsep.attach(model, "layer", weight=1.0)
    torch.testing.assert_close(model(x), expected)
    torch.testing.assert_close(again.loss(), atomsep.AtomLoss()(latent))


@pytest.mark.parametrize("way", ["deepcopy", "pickle"])
def test_nothing_stays_behind_in_copies(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = Model()
    atomsep.attach(model, "layer")
    twin = copy.deepcopy(model) if way == "deepcopy" else pickle.loads(pickle.dumps(model))
    monkeypatch.setattr(Layer, "forward", twice)
    [attachment] = atomsep.attachments(twin)
    attachment.detach()
    assert not any("forward" in vars(module) for module in twin.modules())
    assert "forward" in vars(model.layer)


def test_a_mark_stays_while_another_attachment_needs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Model()
    first, second = (atomsep.attach(model, "layer", atomsep.AtomLoss(norm=n)) for n in (1, 2))
    monkeypatch.setattr(Layer, "forward", twice)
    first.detach()
    assert "forward" in vars(model.layer)
    second.detach()
    assert "forward" not in vars(model.layer)


def test_a_forward_of_the_user_s_own_stays() -> None:
    model, x = Model(), batch()
    latent = 2 * nn.functional.linear(x, *model.layer.parameters())
    expected = model.head(latent.relu()).mean()
    attachment = atomsep.attach(model, "layer", weight=1.0)
    own = model.layer.forward = MethodType(twice, model.layer)  # type: ignore[method-assign]
    torch.testing.assert_close(model(x), expected)
    torch.testing.assert_close(attachment.loss(), atomsep.AtomLoss()(latent))
    attachment.detach()
    assert model.layer.forward is own
