"""KoLeo against lightly and a plain loop, and at its limits."""

from __future__ import annotations

import pytest
import torch
from agreement import BATCHES, agree
from reference import make_batch, real_tokens
from torch import Tensor

from atomsep.methods import KoLeo

batches = pytest.mark.parametrize(("latent", "mask"), BATCHES.values(), ids=BATCHES)


def mean_tokens(latent: Tensor, mask: Tensor | None) -> Tensor:
    return torch.stack([tokens.mean(0) for tokens in real_tokens(latent, mask)])


def looped(rows: Tensor) -> Tensor:
    """By the paper's formula: the least of all distances, without any epsilon."""
    rows = torch.stack([row / (row * row).sum().sqrt() for row in rows])
    total = torch.zeros((), dtype=torch.float64)
    for i, row in enumerate(rows):
        others = [other for j, other in enumerate(rows) if j != i]
        nearest = min((row - other).square().sum().sqrt() for other in others)
        total = total - torch.log(nearest)
    return total / len(rows)


@batches
def test_equals_lightly(latent: Tensor, mask: Tensor | None) -> None:
    from lightly.loss import KoLeoLoss

    agree(lambda x: KoLeo()(x, mask=mask), lambda x: KoLeoLoss()(mean_tokens(x, mask)), latent)


@batches
def test_equals_the_loop(latent: Tensor, mask: Tensor | None) -> None:
    agree(
        lambda x: KoLeo()(x, mask=mask),
        lambda x: looped(mean_tokens(x, mask)),
        latent,
        tolerance=1e-6,  # the epsilons
    )


def test_gradcheck() -> None:
    latent = make_batch(4, 2, 3, seed=1).requires_grad_()
    assert torch.autograd.gradcheck(KoLeo(), latent)


def test_lengths_do_not_matter() -> None:
    latent = make_batch(5, 3, 4, seed=2)
    scales = torch.tensor([1e-3, 0.5, 1, 7, 1e4], dtype=torch.float64).view(-1, 1, 1)
    torch.testing.assert_close(KoLeo()(scales * latent), KoLeo()(latent))


def test_a_step_downhill_spreads_the_nearest_pair() -> None:
    latent = torch.tensor([[[1.0, 0.0]], [[1.0, 0.1]], [[0.0, -1.0]]], requires_grad=True)
    [slope] = torch.autograd.grad(KoLeo()(latent), latent)
    angles = torch.atan2(*(latent - 0.01 * slope).detach()[:, 0].flip(1).T)
    assert angles[1] - angles[0] > torch.atan2(torch.tensor(0.1), torch.tensor(1.0)) + 1e-3


@pytest.mark.parametrize("copies", [2, 3, 5])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_equal_samples_have_the_value_of_lightly_and_no_gradient(
    copies: int, dtype: torch.dtype
) -> None:
    from lightly.loss import KoLeoLoss

    one, other = make_batch(2, 1, 4, 3, seed=3, dtype=dtype)
    latent = torch.cat([one.repeat(copies, 1, 1), other]).requires_grad_()
    loss = KoLeo()(latent)
    wide = latent.detach().to(loss.dtype)
    torch.testing.assert_close(loss, KoLeoLoss()(wide.mean(1)), rtol=1e-4, atol=1e-4)
    [slope] = torch.autograd.grad(loss, latent)
    assert slope.isfinite().all()
    assert (slope[1:copies] == 0).all()
    assert slope[copies].abs().max() < 10, "only the other sample is pushed away"
    assert slope[copies].abs().max() > 0


def test_one_sample_has_neither_value_nor_gradient() -> None:
    latent = make_batch(1, 2, 3, seed=4).requires_grad_()
    loss = KoLeo()(latent)
    assert loss.item() == 0
    [slope] = torch.autograd.grad(loss, latent)
    assert (slope == 0).all()
