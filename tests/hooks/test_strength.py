"""The shares of the gradient are those that autograd finds on an unattached model."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from by_hand import WEIGHT, plain_loss, resnet
from shares_by_hand import MODELS, classify, expected, shares
from torch import Tensor, nn
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

import atomsep
from atomsep.hooks.watch import Watch


@pytest.mark.parametrize("name", MODELS)
def test_shares_are_those_of_autograd(name: str) -> None:
    make, layer, run = MODELS[name]
    model = make()
    right = expected(model, layer, run)
    assert all(share > 0 for share in right)
    for dtype, tolerance in ((torch.float64, 1e-9), (torch.float32, 1e-3)):
        model = model.to(dtype)
        with atomsep.attach(model, layer, weight=WEIGHT, watch_gradients=True) as attachment:
            for _ in range(3):  # the first forward copies, the next ones know who writes
                (run(model) + attachment.loss()).backward()
                assert shares(attachment.stats) == pytest.approx(right, rel=tolerance)


@pytest.mark.parametrize("name", MODELS)
def test_shares_under_autocast(name: str) -> None:
    make, layer, run = MODELS[name]
    model = make().float()
    right = expected(model, layer, run, autocast=True)
    with atomsep.attach(model, layer, weight=WEIGHT, watch_gradients=True) as attachment:
        with torch.autocast("cpu", torch.bfloat16):
            task = run(model)
        (task + attachment.loss()).backward()
        assert shares(attachment.stats) == pytest.approx(right, rel=0.03)


@pytest.mark.parametrize("name", MODELS)
def test_watching_does_not_change_the_gradient(name: str) -> None:
    make, layer, run = MODELS[name]
    found = []
    for watch in (False, True):
        model = make()
        attachment = atomsep.attach(model, layer, weight=WEIGHT, watch_gradients=watch)
        for _ in range(2):
            model.zero_grad()
            (run(model) + attachment.loss()).backward()
        found.append([parameter.grad for parameter in model.parameters()])
    for plain, watched in zip(*found, strict=True):
        torch.testing.assert_close(watched, plain, rtol=1e-12, atol=1e-15)


def test_a_weight_and_a_loss_scale() -> None:
    """The share is linear in the weight, and a factor of the whole loss does not matter."""
    model = resnet()
    attachment = atomsep.attach(model, "layer1.1.bn2", weight=0.5, watch_gradients=True)
    (classify(model) + attachment.loss()).backward()
    once = attachment.stats["gradient_share"]
    attachment.weight = 1.5
    (1024 * (classify(model) + attachment.loss())).backward()
    assert attachment.stats["gradient_share"] == pytest.approx(3 * once)


def test_separate_backward_passes_and_several_layers() -> None:
    model, names = resnet(), ["layer1.1.bn2", "layer2.1.bn2"]
    of_one = expected(model, "layer2.1.bn2", classify)
    attachment = atomsep.attach(model, names, weight=WEIGHT, watch_gradients=True)
    task = classify(model)
    loss = attachment.loss()
    task.backward(retain_graph=True)
    assert all("gradient_share" not in each for each in attachment.stats.values())
    loss.backward()
    apart = {name: shares(each) for name, each in attachment.stats.items()}
    assert apart["layer2.1.bn2"] == pytest.approx([share / 2 for share in of_one])  # of a mean


def test_an_early_layer_is_compared_with_the_task_and_the_terms_of_later_ones() -> None:
    torch.manual_seed(0)
    parts = (nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Flatten(), nn.Linear(40, 2))
    model, values = nn.Sequential(*parts).double(), torch.randn(4, 5, 3, dtype=torch.float64)
    early = model[0](values).detach().requires_grad_()
    late = model[1:3](early)
    task = model[3:](late).logsumexp(1).sum()
    terms = [WEIGHT / 2 * plain_loss(latent) for latent in (early, late)]  # of a mean
    [own] = torch.autograd.grad(terms[0], early)
    [arriving] = torch.autograd.grad(task + terms[1], early, retain_graph=True)
    [of_task] = torch.autograd.grad(task, early)
    attachment = atomsep.attach(model, ["0", "2"], weight=WEIGHT, watch_gradients=True)
    (model(values).logsumexp(1).sum() + attachment.loss()).backward()
    share = attachment.stats["0"]["gradient_share"]
    assert share == pytest.approx(float(own.norm() / arriving.norm()))
    assert share != pytest.approx(float(own.norm() / of_task.norm()), rel=1e-3)


def test_nobody_waits_before_the_shares_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fake tensor has no values: whoever asks for one, which would wait for a GPU, fails."""
    monkeypatch.setattr(Watch, "look", lambda *_: None)  # looks at values later, with events
    with FakeTensorMode(allow_non_fake_inputs=True):
        model = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Flatten(), nn.Linear(40, 2))
        attachment = atomsep.attach(model, "0", watch_gradients=True)
        for _ in range(2):
            (model(torch.randn(4, 5, 3)).logsumexp(1).sum() + attachment.loss()).backward()
        [tap] = attachment._taps
        measured = tap.forwards.read().strength
        assert measured is not None
        assert measured.own is not None
        assert measured.task is not None
        with pytest.raises(DataDependentOutputException):
            tap.gradient_shares()


def test_shares_belong_to_the_last_backward_pass() -> None:
    model = resnet()
    attachment = atomsep.attach(model, "layer1.1.bn2", watch_gradients=True)
    task = classify(model)
    assert "gradient_share" not in attachment.stats
    (task + attachment.loss()).backward()
    assert "gradient_share" in attachment.stats
    classify(model)
    assert "gradient_share" not in attachment.stats  # of a new forward
    attachment.watch_gradients = False
    (classify(model) + attachment.loss()).backward()
    assert "gradient_share" not in attachment.stats


def test_a_task_without_a_gradient() -> None:
    model = nn.Sequential(nn.Linear(3, 8), nn.Flatten(), nn.Linear(40, 2))
    attachment = atomsep.attach(model, "0", watch_gradients=True)
    (0 * model(torch.randn(4, 5, 3)).sum() + attachment.loss()).backward()
    assert attachment.stats["gradient_share"] == math.inf


@pytest.mark.parametrize("skip", [0, 1])
def test_class_tokens_count_in_the_whole_share_alone(skip: int) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Flatten(), nn.Linear(40, 2)).double()
    values = torch.randn(4, 5, 3, dtype=torch.float64)
    latent = model[0](values).detach().requires_grad_()
    own = torch.autograd.grad(WEIGHT * plain_loss(latent[:, skip:]), latent)[0]
    task = torch.autograd.grad(model[1:](latent).logsumexp(1).sum(), latent)[0]
    attachment = atomsep.attach(model, "0", weight=WEIGHT, skip_tokens=skip, watch_gradients=True)
    (model(values).logsumexp(1).sum() + attachment.loss()).backward()
    right = [own.norm() / task.norm()]
    right += [own[:, skip:, part].norm() / task[:, skip:, part].norm() for part in (0, slice(1, 8))]
    assert shares(attachment.stats) == pytest.approx([float(share) for share in right])


@pytest.mark.parametrize("mapped", ["charge", "position", "both"])
def test_learned_maps_have_one_share(mapped: str) -> None:
    """Their gradient passes other nodes; each of them may read all features."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Flatten(), nn.Linear(40, 2)).double()
    values = torch.randn(4, 5, 3).double()
    charge, position = nn.Linear(8, 1).double(), nn.Linear(8, 2).double()
    maps: dict[str, Any] = {"charge": lambda tokens: charge(tokens).squeeze(-1)}
    maps["position"] = position
    maps = maps if mapped == "both" else {mapped: maps[mapped]}
    latent = model[0](values).detach().requires_grad_()
    own = torch.autograd.grad(WEIGHT * plain_loss(latent, **maps), latent)[0]
    task = torch.autograd.grad(model[1:](latent).logsumexp(1).sum(), latent)[0]
    criterion = atomsep.AtomLoss(**maps)
    attachment = atomsep.attach(model, "0", criterion, weight=WEIGHT, watch_gradients=True)
    (model(values).logsumexp(1).sum() + attachment.loss()).backward()
    stats = attachment.stats
    assert stats["gradient_share"] == pytest.approx(float(own.norm() / task.norm()))
    assert not {"gradient_share_charge", "gradient_share_positions"} & stats.keys()
    with pytest.raises(KeyError, match="learned maps read all features"):
        stats["gradient_share_charge"]


def test_checkpointed_blocks() -> None:
    from torch.utils.checkpoint import checkpoint

    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(3, 8), nn.Linear(40, 2)

        def forward(self, values: Tensor) -> Tensor:
            latent = checkpoint(lambda x: self.first(x).tanh(), values, use_reentrant=False)
            return self.last(latent.flatten(1))

    torch.manual_seed(0)
    model, values = Checkpointed().double(), torch.randn(4, 5, 3).double()
    latent = model.first(values).detach().requires_grad_()
    own = torch.autograd.grad(WEIGHT * plain_loss(latent), latent)[0]
    task_loss = model.last(latent.tanh().flatten(1)).logsumexp(1).sum()
    task = torch.autograd.grad(task_loss, latent)[0]
    attachment = atomsep.attach(model, "first", weight=WEIGHT, watch_gradients=True)
    for _ in range(2):
        (model(values).logsumexp(1).sum() + attachment.loss()).backward()
        right = float(own.norm() / task.norm())
        assert attachment.stats["gradient_share"] == pytest.approx(right)
