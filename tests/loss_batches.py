"""Batches for the tests of the loss and of its formulas, and AtomLoss beside the loops."""

from __future__ import annotations

import pytest
import reference
import torch
from reference import make_batch, make_mask, real_tokens
from torch import Tensor

from atomsep import AtomLoss

HOLES = torch.tensor([[1, 1, 0, 1, 0], [0, 1, 1, 1, 1], [0, 0, 1, 0, 0], [1, 1, 1, 1, 1]]).bool()
BATCHES = {
    "random": (make_batch(4, 5, 4, seed=1), None),
    "ragged": (make_batch(4, 5, 4, seed=2), make_mask([5, 3, 1, 4], 5)),
    "holes": (make_batch(4, 5, 3, seed=3), HOLES),
    "tiny": (make_batch(2, 1, 2, seed=4), None),
    "one sample": (make_batch(1, 4, 3, seed=5), None),
}
batches = pytest.mark.parametrize(("latent", "mask"), BATCHES.values(), ids=BATCHES)
norms = pytest.mark.parametrize("norm", [1, 2])
scales = pytest.mark.parametrize("scale", ["mean", "sum"])


def close(actual: Tensor, expected: Tensor, tolerance: float = 1e-10) -> None:
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)


def same_loss(loss: AtomLoss, latent: Tensor, mask: Tensor | None, **settings: object) -> None:
    """The module and the loops agree in value and gradient."""
    fused = latent.clone().requires_grad_()
    looped = latent.clone().requires_grad_()
    value = loss(fused, mask)
    expected = reference.loss(real_tokens(looped, mask), **settings)
    assert value.dim() == 0
    close(value, expected)
    (grad,) = torch.autograd.grad(value, fused)
    (expected_grad,) = torch.autograd.grad(expected, looped)
    close(grad, expected_grad)
