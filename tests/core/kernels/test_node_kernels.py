"""The node computed by the kernels: the numbers of plain PyTorch in float64, in every use."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import atomsep
from atomsep import AtomLoss, use_kernels
from atomsep.core.layout import Layout

pytestmark = pytest.mark.usefixtures("poisoned_memory")


def network(dtype: torch.dtype = torch.float32) -> nn.Sequential:
    torch.manual_seed(0)
    parts = (nn.Conv2d(3, 6, 3, bias=False), nn.BatchNorm2d(6), nn.ReLU(True), nn.Conv2d(6, 2, 3))
    return nn.Sequential(*parts).to(dtype)


def gradients(model: nn.Module, loss: Tensor) -> list[Tensor]:
    return [g.double().cpu() for g in torch.autograd.grad(loss, list(model.parameters()))]


def assert_close(got: list[Tensor], want: list[Tensor]) -> None:
    for one, other in zip(got, want, strict=True):
        assert (one - other).norm() <= 1e-4 * other.norm() + 1e-9


@pytest.mark.parametrize("size", [6, 12])
@pytest.mark.parametrize(("later", "energy"), [(0.3, 1.0), (0.7, 1.0), (0.7, 0.4), (0.3, 0.0)])
def test_an_attached_network(size: int, later: float, energy: float, device: torch.device) -> None:
    """In place after the layer; few tokens and many; the weight the same at both times or not."""
    x = torch.randn(3, 3, size, size, generator=torch.Generator().manual_seed(1))
    losses, grads = [], []
    for mode, dtype in (("torch", torch.float64), ("triton", torch.float32)):
        model = network(dtype).to(device)
        criterion = AtomLoss(energy=energy)
        with use_kernels(mode), atomsep.attach(model, "1", criterion, weight=0.3) as attachment:
            for _ in range(2):  # the second knows that the layer is overwritten
                output = model(x.to(device, dtype))
                attachment.weight = later
                loss = attachment.loss()
                attachment.weight = 0.3
            losses.append(loss.item())
            grads.append(gradients(model, output.square().mean() + loss))
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)
    assert_close(grads[1], grads[0])


def test_the_loss_and_the_statistics_both_used(device: torch.device) -> None:
    latent = torch.randn(3, 40, 5, generator=torch.Generator().manual_seed(0))
    results = []
    for mode, dtype in (("torch", torch.float64), ("triton", torch.float32)):
        leaf = latent.to(device, dtype).requires_grad_()
        with use_kernels(mode):
            module = AtomLoss()
            statistics = module.measure(leaf, None, Layout(), weight=1.0).statistics
            assert statistics.ready is not None
            loss = module.from_statistics(statistics)
            loss = loss + statistics.nucleus.square().sum() + statistics.radius.sum()
            results.append([loss.detach().double().cpu(), *_grad(loss, leaf)])
    assert_close(results[1], results[0])


@pytest.mark.parametrize("with_table", [False, True])
def test_differentiated_twice(with_table: bool, device: torch.device) -> None:
    latent = torch.randn(3, 7, 4, generator=torch.Generator().manual_seed(0))
    results = []
    for mode, dtype in (("torch", torch.float64), ("triton", torch.float32)):
        leaf = latent.to(device, dtype).requires_grad_()
        with use_kernels(mode):
            module = AtomLoss()
            statistics = module.measure(leaf, None, Layout(), weight=2.0).statistics
            loss = module.from_statistics(statistics, 2.0)
            if with_table:
                loss = loss + statistics.radius.sum()
            [first] = torch.autograd.grad(loss, leaf, create_graph=True)
            results.append(_grad(first.square().sum(), leaf))
    assert_close(results[1], results[0])


def _grad(loss: Tensor, leaf: Tensor) -> list[Tensor]:
    return [torch.autograd.grad(loss, leaf)[0].double().cpu()]


def test_checkpointed(device: torch.device) -> None:
    """Run twice, counted once."""
    x = torch.randn(3, 3, 6, 6, generator=torch.Generator().manual_seed(1)).to(device)
    plain = network().to(device)
    inside = copy.deepcopy(plain)
    grads = []
    with use_kernels("triton"):
        for model, call in (
            (plain, plain),
            (inside, lambda x: checkpoint(inside, x, use_reentrant=False)),
        ):
            with atomsep.attach(model, "1", weight=0.3) as attachment:
                output = call(x)
                grads.append(gradients(model, output.square().mean() + attachment.loss()))
    assert_close(grads[1], grads[0])


def test_without_the_loss_the_gradient_passes(device: torch.device) -> None:
    leaf = torch.randn(2, 9, 4, device=device, requires_grad=True)
    with use_kernels("triton"):
        measured = AtomLoss().measure(leaf, None, Layout(), passing="alias", weight=1.0)
        assert measured.passed is not None
        [grad] = torch.autograd.grad(measured.passed.sum(), leaf)
    assert torch.equal(grad, torch.ones_like(leaf))
