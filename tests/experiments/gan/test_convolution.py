"""The convolution of the penalty: values, gradients and second gradients are torch's own."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from atomsep.experiments.gan.convolution import FirstPass, convolve
from atomsep.experiments.gan.dcgan import Discriminator


@pytest.mark.parametrize(
    ("stride", "padding", "size"), [(2, 1, 8), (1, 0, 4), (2, 1, 9), (3, 2, 7)]
)
def test_it_is_torchs_convolution(stride: int, padding: int, size: int) -> None:
    torch.manual_seed(0)
    layer = nn.Conv2d(2, 3, 4, stride, padding, bias=False).double()
    images = torch.randn(5, 2, size, size, dtype=torch.float64)
    found = []
    for own in (True, False):
        x, first = images.clone().requires_grad_(), FirstPass()
        output = convolve(layer, x, first) if own else layer(x)
        [gradient] = torch.autograd.grad(output.tanh().sum(), x, create_graph=True)
        first.active = False
        loss = gradient.square().sum() + output.square().sum()
        found.append((output, gradient, *torch.autograd.grad(loss, [x, layer.weight])))
    for ours, torchs in zip(*found, strict=True):
        torch.testing.assert_close(ours, torchs, rtol=1e-10, atol=1e-12)


def by_torch(model: Discriminator, images: Tensor) -> tuple[Tensor, Tensor]:
    """Logits and gradient by PyTorch's own convolutions."""
    images = images.detach().requires_grad_()
    logits = model(images)
    [gradient] = torch.autograd.grad(logits.sum(), images, create_graph=True)
    return logits, gradient


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(
    not torch.cuda.is_available(), reason="needs a GPU"))])  # fmt: skip
def test_the_discriminators_penalty_and_its_gradient(device: str) -> None:
    torch.manual_seed(0)
    model = Discriminator(3, 4).double().to(device)
    images = torch.randn(6, 3, 64, 64, dtype=torch.float64, device=device)
    found = []
    for compute in (Discriminator.with_gradient, by_torch):
        copied = copy.deepcopy(model)
        logits, gradient = compute(copied, images)
        penalty = gradient.square().flatten(1).sum(1).mean()
        (penalty + logits.sigmoid().mean()).backward()
        gradients = [parameter.grad for parameter in copied.parameters()]
        found.append([logits, gradient, penalty, *gradients, *copied.buffers()])
    for ours, torchs in zip(*found, strict=True):
        torch.testing.assert_close(ours, torchs, rtol=1e-8, atol=1e-10)


def test_half_precision_rounds_as_autocast_does() -> None:
    torch.manual_seed(0)
    model, images = Discriminator(1, 4), torch.randn(6, 1, 64, 64)
    with torch.autocast("cpu", torch.bfloat16):
        logits, gradient = model.with_gradient(images)
        expected = model(images)
    assert logits.dtype == expected.dtype == torch.bfloat16
    torch.testing.assert_close(logits, expected)
    assert gradient.dtype == torch.float32
