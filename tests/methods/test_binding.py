"""Methods bound to a layer, in every layout."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import atomsep
from atomsep.methods import SSCL, VQ, Atom, Hinge, SimCLR, make_method

AXES = {
    "channels_first": lambda tokens: tokens.transpose(1, 2),
    "channels_last": lambda tokens: tokens,
    "length_first": lambda tokens: tokens.transpose(0, 1),
}
"""From tokens `(M, N, h)` to the output of a layer."""


class Layer(nn.Module):
    """Returns its input with other axes, scaled, and a second thing beside it."""

    def __init__(self, axes: str) -> None:
        super().__init__()
        self.axes = axes
        self.scale = nn.Parameter(torch.tensor(2.0))

    def forward(self, tokens: Tensor) -> tuple[Tensor, str]:
        return AXES[self.axes](tokens) * self.scale, "beside"


def batch() -> Tensor:
    return torch.randn(4, 5, 3, generator=torch.Generator().manual_seed(0))


def model(axes: str = "channels_last") -> Any:
    return nn.Sequential(Layer(axes))


@pytest.mark.parametrize("axes", AXES)
def test_the_tokens_are_read_and_replaced_in_every_layout(axes: str) -> None:
    bound, quantiser = model(axes), VQ(features=3, codes=4)
    binding = quantiser.bind(bound, "0", weight=0.5, layout=axes)  # type: ignore[arg-type]
    passed, beside = bound(batch())
    tokens = 2 * batch()
    torch.testing.assert_close(passed, AXES[axes](quantiser.pass_on(tokens)))
    assert beside == "beside"
    torch.testing.assert_close(binding.loss(), 0.5 * quantiser(tokens))


def test_writing_in_place_does_not_change_the_loss() -> None:
    bound = model()
    binding = SSCL().bind(bound, "0", weight=1.0, layout="channels_last")
    bound(batch())[0].zero_()
    torch.testing.assert_close(binding.loss(), SSCL()(2 * batch()))


def test_labels_and_a_second_view() -> None:
    bound, labels = model(), torch.tensor([0, 1, 0, 1])
    hinge = Hinge().bind(bound, "0", weight=1.0, layout="channels_last")
    bound(batch())
    torch.testing.assert_close(hinge.loss(labels), Hinge()(2 * batch(), labels))
    hinge.detach()
    contrast = SimCLR().bind(bound, "0", weight=1.0, layout="channels_last")
    bound(batch())
    with pytest.raises(ValueError, match="SimCLR compares two views .* pass again=.* augmentation"):
        contrast.loss()
    found = contrast.loss(again=lambda: bound(batch() + 1))
    torch.testing.assert_close(found, SimCLR()(2 * batch(), second=2 * (batch() + 1)))


def test_atom_modeling_is_attached() -> None:
    bound, same = model(), model()
    binding = Atom().bind(bound, "0", weight=0.3, layout="channels_last")
    attachment = atomsep.attach(same, "0", weight=0.3, layout="channels_last")
    bound(batch())
    same(batch())
    assert torch.equal(binding.loss(), attachment.loss())
    assert torch.equal(binding.importance, attachment.importance)
    binding.detach()
    assert not binding.attachment.active
    assert SSCL().bind(bound, "0", layout="channels_last").importance is None


def test_each_forward_has_one_loss_and_evaluation_none() -> None:
    bound = model()
    binding = SSCL().bind(bound, "0", layout="channels_last")
    message = "layer '0' has not run in training mode since the last loss"
    with pytest.raises(RuntimeError, match=message):
        binding.loss()
    bound(batch())
    binding.loss()
    bound.eval()(batch())
    with torch.no_grad():
        bound.train()(batch())
    with pytest.raises(RuntimeError, match=message):
        binding.loss()


class Checkpointed(nn.Module):
    """Recomputes its layer in the backward pass; its tokens may be padding."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.head = nn.Linear(3, 6), nn.Linear(6, 2)
        self.reentrant = False

    def rest(self, latent: Tensor) -> Tensor:
        return self.head(latent.tanh().mean(1)).square().mean()  # type: ignore[no-any-return]

    def forward(self, tokens: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        latent = checkpoint(
            lambda tokens: self.layer(tokens).tanh(), tokens, use_reentrant=self.reentrant
        )
        return self.head(latent.mean(1)).square().mean()  # type: ignore[no-any-return]


@pytest.mark.parametrize("name", ["koleo", "vq"])
@pytest.mark.parametrize("watch", [False, True])
def test_a_recomputation_is_no_forward(name: str, watch: bool) -> None:
    """Gradients and shares are those of autograd, and each forward has one loss."""
    bound, tokens, real = Checkpointed().double(), batch().double(), torch.ones(4, 5).bool()
    real[1, 3:] = False
    method = make_method(name, features=6)
    assert method is not None
    method = method.double()
    latent = bound.layer(tokens)
    task, own = bound.rest(method.pass_on(latent)), 0.3 * method(latent, mask=real)
    expected = torch.autograd.grad(task + own, list(bound.parameters()), retain_graph=True)
    of_task, of_own = (torch.autograd.grad(loss, latent)[0].norm().item() for loss in (task, own))

    binding = method.bind(bound, "layer", weight=0.3)
    binding.watch_gradients = watch
    for _ in range(2):
        total = bound(tokens, attention_mask=real) + binding.loss()
        found = torch.autograd.grad(total, list(bound.parameters()))  # warnings are errors
        torch.testing.assert_close(found, expected)
        share = {"gradient_share": pytest.approx(of_own / of_task)}
        assert binding.gradient_shares == (share if watch else {})
        with pytest.raises(RuntimeError, match="has not run in training mode since the last loss"):
            binding.loss()


def test_reentrant_checkpoints_have_no_loss() -> None:
    bound = Checkpointed()
    bound.reentrant = True
    binding = SSCL().bind(bound, "layer")
    bound(batch().requires_grad_()).backward()
    with pytest.raises(RuntimeError, match="with gradients enabled"):
        binding.loss()


def test_no_hook_is_left() -> None:
    bound = model()
    binding = VQ(features=3).bind(bound, "0", layout="channels_last")
    assert len(bound[0]._forward_hooks) == 1
    binding.detach()
    assert not any(module._forward_hooks for module in bound.modules())
    assert torch.equal(bound(batch())[0], 2 * batch())


def test_one_layer_only() -> None:
    two = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    with pytest.raises(ValueError, match=r"'\*' matches several layers \(0, 1\), but SSCL acts on"):
        SSCL().bind(two, "*")
    with pytest.raises(ValueError, match="layer 'nope' matches nothing"):
        SSCL().bind(two, "nope")
    assert not any(module._forward_hooks for module in two.modules())


def test_the_state_of_atom_modeling_holds_its_draws() -> None:
    first, second = (Atom(pairs="sampled", seed=3) for _ in range(2))
    for _ in range(5):
        first(batch())
    second.load_state_dict(first.state_dict())
    assert second(batch()) == first(batch())
    assert second(batch()) != Atom(pairs="sampled", seed=3)(batch())


@pytest.mark.parametrize("name", ["koleo", "atom", "mode-seeking"])
@pytest.mark.parametrize(
    ("weight", "error", "message"),
    [
        (-1.0, ValueError, "weight must be a finite number of at least 0, not -1.0"),
        (float("nan"), ValueError, "weight must be a finite number of at least 0, not nan"),
        (float("inf"), ValueError, "weight must be a finite number of at least 0, not inf"),
        ("x", TypeError, r"weight must be a number, not 'x' \(str\)"),
        (torch.ones(2), TypeError, r"weight must be a number, not tensor\(\[1., 1.\]\)"),
    ],
)
def test_what_attach_refuses_as_a_weight_is_refused_here_too(
    name: str, weight: Any, error: type[Exception], message: str
) -> None:
    bound, method = model(), make_method(name, features=3)
    assert method is not None
    with pytest.raises(error, match=message):
        method.bind(bound, "0", weight=weight)
    assert not any(each._forward_hooks or each._forward_pre_hooks for each in bound.modules())
    method.bind(bound, "0", weight=0)
