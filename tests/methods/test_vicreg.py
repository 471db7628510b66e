"""VICReg's variance and covariance against lightly and plain loops."""

from __future__ import annotations

import math

import pytest
import torch
from agreement import BATCHES, agree
from reference import make_batch
from test_koleo import batches, mean_tokens
from torch import Tensor

from atomsep.methods import VICReg

weights = pytest.mark.parametrize("weights", [(25.0, 1.0), (1.0, 0.0), (0.0, 1.0), (0.3, 7.0)])


def looped(rows: Tensor, variance: float, covariance: float) -> Tensor:
    """By the paper's formulas, entry by entry."""
    samples, features = rows.shape
    means = [sum(row[j] for row in rows) / samples for j in range(features)]

    def entry(j: int, k: int) -> Tensor:
        products = [(row[j] - means[j]) * (row[k] - means[k]) for row in rows]
        return sum(products) / (samples - 1)

    total = torch.zeros((), dtype=rows.dtype)
    for j in range(features):
        total = total + variance / features * torch.relu(1 - (entry(j, j) + 1e-4).sqrt())
        for k in range(features):
            if k != j:
                total = total + covariance / features * entry(j, k) ** 2
    return total


@batches
@weights
@pytest.mark.parametrize("spread", [0.3, 3.0])
def test_equals_lightly_and_the_loop(
    latent: Tensor, mask: Tensor | None, weights: tuple[float, float], spread: float
) -> None:
    from lightly.loss.vicreg_loss import covariance_loss, variance_loss

    if weights == (1.0, 0.0):
        spread = 0.3  # beyond a deviation of 1 the hinge has no gradient

    def ours(x: Tensor) -> Tensor:
        return VICReg(*weights)(x, mask=mask)

    def theirs(x: Tensor) -> Tensor:
        rows = mean_tokens(x, mask)
        return weights[0] * variance_loss(rows) + weights[1] * covariance_loss(rows)

    agree(ours, theirs, spread * latent)
    agree(ours, lambda x: looped(mean_tokens(x, mask), *weights), spread * latent)


def test_the_defaults_are_the_papers() -> None:
    latent = BATCHES["full"][0]
    assert VICReg()(latent) == VICReg(variance=25, covariance=1)(latent)


def test_gradcheck() -> None:
    latent = make_batch(4, 2, 3, seed=1, spread=0.5).requires_grad_()
    assert torch.autograd.gradcheck(VICReg(), latent)


def test_spread_and_uncorrelated_features_cost_nothing() -> None:
    corners = torch.tensor([[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0]])
    assert VICReg()(corners.unsqueeze(1)).item() == 0
    along = torch.tensor([[1.0, 1.0], [-1.0, -1.0]])  # every entry of the covariance is 2
    assert VICReg()(along.unsqueeze(1)).item() == pytest.approx(4)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_equal_samples_are_a_finite_loss(dtype: torch.dtype) -> None:
    latent = make_batch(1, 4, 3, seed=2, dtype=dtype).repeat(5, 1, 1).requires_grad_()
    loss = VICReg()(latent)
    assert loss.item() == pytest.approx(25 * (1 - 1e-2), rel=1e-3)
    [slope] = torch.autograd.grad(loss, latent)
    assert slope.abs().max() < 1e-2


def test_one_sample_has_neither_value_nor_gradient() -> None:
    latent = make_batch(1, 2, 3, seed=3).requires_grad_()
    loss = VICReg()(latent)
    assert loss.item() == 0
    [slope] = torch.autograd.grad(loss, latent)
    assert (slope == 0).all()


@pytest.mark.parametrize("value", [-1.0, math.inf, math.nan])
def test_weights_are_refused(value: float) -> None:
    with pytest.raises(ValueError, match="variance must be a weight of at least 0, not"):
        VICReg(variance=value)
    with pytest.raises(ValueError, match="covariance must be a weight of at least 0, not"):
        VICReg(covariance=value)
