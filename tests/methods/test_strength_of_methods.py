"""Every method on a layer shows the share of its gradient."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from atomsep.methods import METHODS, make_method

NAMES = [name for name in METHODS if name not in {"plain", "mode-seeking"}]
"""Mode seeking has no loss of a latent, whose gradient could be compared."""


def small_model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Flatten(), nn.Linear(40, 3)).double()


@pytest.mark.parametrize("name", NAMES)
def test_the_share_is_that_of_autograd(name: str) -> None:
    model, labels = small_model(), torch.tensor([0, 1, 2, 0, 1, 2])
    first, second = torch.randn(2, 6, 5, 3, dtype=torch.float64).unbind()
    method = make_method(name, features=8)
    assert method is not None
    method = method.double()
    by_hand = copy.deepcopy(method)
    binding = method.bind(model, "0", weight=0.3)
    binding.watch_gradients = True
    loss = F.cross_entropy(model(first), labels)
    again = None if method.second_view is None else (lambda: model(second))
    (loss + binding.loss(labels, again)).backward()
    share = binding.gradient_shares["gradient_share"]
    binding.detach()

    latents: list[Tensor] = [model[0](view).detach().requires_grad_() for view in (first, second)]
    own_loss = 0.3 * by_hand(latents[0], labels, None, latents[1])
    own = torch.autograd.grad(own_loss, latents[0])[0]
    task_loss = F.cross_entropy(model[1:](by_hand.pass_on(latents[0])), labels)
    task = torch.autograd.grad(task_loss, latents[0])[0]
    assert share == pytest.approx(float(own.norm() / task.norm()), rel=1e-6)


def test_nothing_is_shown_that_was_not_watched() -> None:
    model = small_model()
    for name in ("sscl", "atom"):
        method = make_method(name, features=8)
        assert method is not None
        binding = method.bind(model, "0")
        (model(torch.randn(6, 5, 3).double()).sum() + binding.loss()).backward()
        assert binding.gradient_shares == {}
        binding.detach()


def test_a_layer_that_the_task_ignores_is_left_out() -> None:
    class TwoBranches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.unused, self.head = nn.Linear(3, 8), nn.Linear(3, 8), nn.Linear(40, 3)

        def forward(self, values: Tensor) -> Tensor:
            self.unused(values)
            return self.head(self.used(values).flatten(1))

    torch.manual_seed(0)
    model, values = TwoBranches().double(), torch.randn(6, 5, 3).double()
    shares = []
    for layers in (["used", "unused"], ["used"]):
        method = make_method("atom", features=8)
        assert method is not None
        binding = method.bind(model, layers, weight=0.1 * len(layers))
        binding.watch_gradients = True
        (model(values).logsumexp(1).sum() + binding.loss()).backward()
        shares.append(binding.gradient_shares["gradient_share"])
        binding.detach()
    assert shares[0] == pytest.approx(shares[1])
