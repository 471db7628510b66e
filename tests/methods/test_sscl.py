"""SSCL against the loop over samples, and what it can and cannot train."""

from __future__ import annotations

import math

import pytest
import torch
from agreement import BATCHES, agree, cos, vectors
from reference import make_batch
from torch import Tensor

from atomsep.methods import SSCL


def looped(rows: list[Tensor], temperature: float) -> Tensor:
    total = torch.zeros((), dtype=torch.float64)
    for i, anchor in enumerate(rows):
        terms = [torch.exp(cos(anchor, other) / temperature) for other in rows]
        total = total - torch.log(terms[i] / sum(terms))
    return total / len(rows)


@pytest.mark.parametrize(("latent", "mask"), BATCHES.values(), ids=BATCHES)
@pytest.mark.parametrize("temperature", [0.1, 0.5])
def test_equals_the_loop(latent: Tensor, mask: Tensor | None, temperature: float) -> None:
    agree(
        lambda x: SSCL(temperature)(x, mask=mask),
        lambda x: looped(vectors(x, mask), temperature),
        latent,
    )


def test_gradcheck() -> None:
    latent = make_batch(4, 2, 2, seed=1).requires_grad_()
    assert torch.autograd.gradcheck(SSCL(), latent)


def test_its_least_value_is_reached_by_spread_directions() -> None:
    spread = torch.tensor([[[1.0, 0.0]], [[-1.0, 0.0]]])
    assert SSCL()(spread).item() == pytest.approx(math.log1p(math.exp(-4)), rel=1e-5)
    alike = torch.ones(2, 1, 2)
    assert SSCL()(alike).item() == pytest.approx(math.log(2), rel=1e-6)


def test_one_sample_has_no_gradient() -> None:
    latent = make_batch(1, 2, 3, seed=2, dtype=torch.float32).requires_grad_()
    (slope,) = torch.autograd.grad(SSCL()(latent), latent)
    assert torch.equal(slope, torch.zeros_like(latent))


def test_a_sample_of_zeros_is_similar_to_itself() -> None:
    latent = torch.tensor([[[1.0, 2.0]], [[0.0, 0.0]]])
    assert SSCL()(latent).item() == pytest.approx(math.log1p(math.exp(-2)), rel=1e-5)
