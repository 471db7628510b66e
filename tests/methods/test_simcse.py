"""SimCSE against pytorch-metric-learning and the loop over samples."""

from __future__ import annotations

import pytest
import torch
from agreement import BATCHES, agree, cos, vectors
from pytorch_metric_learning.losses import NTXentLoss
from reference import make_batch
from torch import Tensor

from atomsep.methods import SimCSE


def looped(one: list[Tensor], two: list[Tensor], temperature: float) -> Tensor:
    total = torch.zeros((), dtype=torch.float64)
    for i, anchor in enumerate(one):
        terms = [torch.exp(cos(anchor, other) / temperature) for other in two]
        total = total - torch.log(terms[i] / sum(terms))
    return total / len(one)


@pytest.mark.parametrize(("latent", "mask"), BATCHES.values(), ids=BATCHES)
def test_equals_the_loop(latent: Tensor, mask: Tensor | None) -> None:
    agree(
        lambda x, y: SimCSE()(x, mask=mask, second=y),
        lambda x, y: looped(vectors(x, mask), vectors(y, mask), 0.05),
        latent,
        latent + make_batch(*latent.shape, seed=1),
    )


def test_equals_pytorch_metric_learning() -> None:
    peer = NTXentLoss(0.05)
    which = torch.arange(16)
    agree(
        lambda x, y: SimCSE()(x, second=y),
        lambda x, y: peer(x.flatten(1), which, ref_emb=y.flatten(1), ref_labels=which.clone()),
        make_batch(16, 4, 3, seed=2),
        make_batch(16, 4, 3, seed=3),
    )


def test_it_has_one_direction() -> None:
    one, two = make_batch(5, 2, 3, seed=4), make_batch(5, 2, 3, seed=5)
    assert SimCSE()(one, second=two) != pytest.approx(SimCSE()(two, second=one).item(), rel=1e-3)


def test_gradcheck() -> None:
    views = [make_batch(4, 2, 2, seed=seed).requires_grad_() for seed in (6, 7)]
    assert torch.autograd.gradcheck(lambda x, y: SimCSE(0.5)(x, second=y), views)
