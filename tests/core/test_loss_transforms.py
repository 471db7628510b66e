"""torch.func, forward-mode AD and vmap give what ordinary autograd gives."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

from atomsep import AtomLoss

MASK = torch.tensor([[1, 1, 0, 1, 0], [0, 1, 1, 1, 1], [0, 0, 1, 0, 0]]).bool()
masks = pytest.mark.parametrize("mask", [None, MASK], ids=["all", "masked"])


def make(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


@masks
@pytest.mark.parametrize("norm", [1, 2])
def test_grad(mask: Tensor | None, norm: int) -> None:
    latent, loss = make(3, 5, 4), AtomLoss(norm)  # type: ignore[arg-type]
    found = torch.func.grad(lambda x: loss(x, mask))(latent)
    leaf = latent.requires_grad_()
    [expected] = torch.autograd.grad(loss(leaf, mask), leaf)
    torch.testing.assert_close(found, expected)


@masks
def test_forward_mode(mask: Tensor | None) -> None:
    latent, direction, loss = make(3, 5, 4), make(3, 5, 4, seed=1), AtomLoss()
    _, along = torch.func.jvp(lambda x: loss(x, mask), (latent,), (direction,))
    with forward_ad.dual_level():
        dual = loss(forward_ad.make_dual(latent, direction), mask)
        assert torch.equal(forward_ad.unpack_dual(dual).tangent, along)
    leaf = latent.requires_grad_()
    [grad] = torch.autograd.grad(loss(leaf, mask), leaf)
    torch.testing.assert_close(along, (grad * direction).sum())


@masks
def test_vmap_over_batches(mask: Tensor | None) -> None:
    latents, loss = make(6, 3, 5, 4), AtomLoss()
    found = torch.func.vmap(torch.func.grad(lambda x: loss(x, mask)))(latents)
    for latent, grad in zip(latents, found, strict=True):
        torch.testing.assert_close(grad, torch.func.grad(lambda x: loss(x, mask))(latent))
    values = torch.func.vmap(lambda x: loss(x, mask))(latents)
    torch.testing.assert_close(values, torch.stack([loss(x, mask) for x in latents]))


def test_hessian() -> None:
    latent, loss = make(2, 2, 3), AtomLoss()
    found = torch.func.hessian(loss)(latent)
    torch.testing.assert_close(found, torch.autograd.functional.hessian(loss, latent))


def test_learned_maps_and_functional_call() -> None:
    torch.manual_seed(0)
    loss = AtomLoss(charge=nn.Linear(4, 1), position=nn.Linear(4, 3)).double()
    latent = make(3, 5, 4)
    parameters = dict(loss.named_parameters())

    def value(parameters: dict[str, Tensor]) -> Tensor:
        return torch.func.functional_call(loss, parameters, (latent,))

    found = torch.func.grad(value)(parameters)
    expected = torch.autograd.grad(loss(latent), list(parameters.values()))
    for one, other in zip(found.values(), expected, strict=True):
        torch.testing.assert_close(one, other)
