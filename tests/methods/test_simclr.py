"""NT-Xent against pytorch-metric-learning and the loop over views."""

from __future__ import annotations

import math

import pytest
import torch
from agreement import BATCHES, agree, cos, vectors
from pytorch_metric_learning.losses import NTXentLoss
from reference import make_batch
from torch import Tensor

from atomsep.methods import SimCLR


def looped(one: list[Tensor], two: list[Tensor], temperature: float) -> Tensor:
    views, samples = [*one, *two], len(one)
    total = torch.zeros((), dtype=torch.float64)
    for i in range(2 * samples):
        terms = {
            k: torch.exp(cos(views[i], views[k]) / temperature)
            for k in range(2 * samples)
            if k != i
        }
        total = total - torch.log(terms[(i + samples) % (2 * samples)] / sum(terms.values()))
    return total / (2 * samples)


@pytest.mark.parametrize(("latent", "mask"), BATCHES.values(), ids=BATCHES)
def test_equals_the_loop_over_views(latent: Tensor, mask: Tensor | None) -> None:
    agree(
        lambda x, y: SimCLR()(x, mask=mask, second=y),
        lambda x, y: looped(vectors(x, mask), vectors(y, mask), 0.5),
        latent,
        latent + make_batch(*latent.shape, seed=1, spread=0.5),
    )


@pytest.mark.parametrize("temperature", [0.1, 0.5])
def test_equals_pytorch_metric_learning(temperature: float) -> None:
    peer = NTXentLoss(temperature)
    which = torch.arange(16).repeat(2)
    agree(
        lambda x, y: SimCLR(temperature)(x, second=y),
        lambda x, y: peer(torch.cat([x, y]).flatten(1), which),
        make_batch(16, 4, 3, seed=2),
        make_batch(16, 4, 3, seed=3),
    )


def test_views_may_be_swapped() -> None:
    one, two = make_batch(5, 2, 3, seed=4), make_batch(5, 2, 3, seed=5)
    torch.testing.assert_close(SimCLR()(one, second=two), SimCLR()(two, second=one))


def test_samples_alike_are_told_apart_by_chance() -> None:
    latent = torch.ones(5, 2, 3)
    assert SimCLR()(latent, second=latent).item() == pytest.approx(math.log(9), rel=1e-6)


def test_gradcheck() -> None:
    views = [make_batch(4, 2, 2, seed=seed).requires_grad_() for seed in (6, 7)]
    assert torch.autograd.gradcheck(lambda x, y: SimCLR()(x, second=y), views)
