"""MixCSE written out logit by logit, and against SimCSE."""

from __future__ import annotations

import pytest
import torch
from agreement import BATCHES, agree, cos, vectors
from reference import make_batch
from torch import Tensor

from atomsep.methods import MixCSE, SimCSE


def looped(one: list[Tensor], two: list[Tensor], temperature: float, share: float) -> Tensor:
    samples = len(one)
    zero = torch.zeros((), dtype=torch.float64)
    total = zero
    for i in range(samples):
        logits = [cos(one[i], two[j]) / temperature for j in range(samples)]
        for j in range(samples):
            mixed = (share * two[j] + (1 - share) * two[(j + 1) % samples]).detach()
            skip = (j + 1) % samples == i  # mostly the positive of i
            logits.append(zero if skip else cos(one[i], mixed) / temperature)
        mixed = (share * one[i] + (1 - share) * one[(i + 1) % samples]).detach()
        for j in range(samples):
            skip = (i + 1) % samples == j  # mostly the anchor of j
            logits.append(zero if skip else cos(mixed, two[j]) / temperature)
        assert len(logits) == 3 * samples
        total = total + torch.logsumexp(torch.stack(logits), 0) - logits[i]
    return total / samples


@pytest.mark.parametrize(("latent", "mask"), BATCHES.values(), ids=BATCHES)
@pytest.mark.parametrize(("temperature", "share"), [(0.05, 0.2), (1.0, 0.7)])
def test_equals_the_release_logit_by_logit(
    latent: Tensor, mask: Tensor | None, temperature: float, share: float
) -> None:
    agree(
        lambda x, y: MixCSE(temperature, share)(x, mask=mask, second=y),
        lambda x, y: looped(vectors(x, mask), vectors(y, mask), temperature, share),
        latent,
        latent + make_batch(*latent.shape, seed=1),
    )


@pytest.mark.parametrize("samples", [1, 2])
def test_small_batches(samples: int) -> None:
    agree(
        lambda x, y: MixCSE(1.0)(x, second=y),
        lambda x, y: looped(vectors(x, None), vectors(y, None), 1.0, 0.2),
        make_batch(samples, 2, 3, seed=2),
        make_batch(samples, 2, 3, seed=3),
    )


def test_mixed_negatives_make_the_task_harder_than_simcse() -> None:
    one, two = make_batch(6, 2, 3, seed=4), make_batch(6, 2, 3, seed=5)
    assert MixCSE()(one, second=two) > SimCSE()(one, second=two)


@pytest.mark.parametrize("mixing", [-0.1, 1.2])
def test_a_share_outside_0_and_1_is_refused(mixing: float) -> None:
    with pytest.raises(ValueError, match=f"mixing must be between 0 and 1, not {mixing}"):
        MixCSE(mixing=mixing)
