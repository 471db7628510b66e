"""Two ways to one loss: equal in value, and in the gradient of everything that goes in."""

from __future__ import annotations

from collections.abc import Callable

import torch
from reference import make_batch, make_mask
from torch import Tensor

LABELS = torch.tensor([0, 1, 0, 2, 1, 0])
"""Three of class 0, two of class 1, one of class 2: anchors with and without a positive."""

BATCHES = {
    "full": (make_batch(6, 3, 4, seed=11), None),
    "ragged": (make_batch(6, 3, 4, seed=12), make_mask([3, 1, 2, 3, 1, 2], 3)),
}


def agree(
    first: Callable[..., Tensor],
    second: Callable[..., Tensor],
    *inputs: Tensor,
    tolerance: float = 1e-10,
) -> None:
    values, gradients = [], []
    for function in (first, second):
        leaves = [tensor.clone().requires_grad_() for tensor in inputs]
        values.append(function(*leaves))
        gradients.append(torch.autograd.grad(values[-1], leaves))
    assert values[0].dim() == 0
    torch.testing.assert_close(values[0], values[1], rtol=tolerance, atol=tolerance)
    for one, other in zip(*gradients, strict=True):
        assert other.abs().max() > 0, "a gradient of zeros would agree with anything broken"
        torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance)


def vectors(latent: Tensor, mask: Tensor | None) -> list[Tensor]:
    """h_i, token by token."""
    rows = []
    for i, tokens in enumerate(latent):
        real = [True] * len(tokens) if mask is None else mask[i].tolist()
        parts = [t if keep else torch.zeros_like(t) for t, keep in zip(tokens, real, strict=True)]
        rows.append(torch.cat(parts))
    return rows


def cos(a: Tensor, b: Tensor) -> Tensor:
    return (a * b).sum() / ((a * a).sum().sqrt() * (b * b).sum().sqrt())
