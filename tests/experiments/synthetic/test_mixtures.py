"""The task: its statistics, its labels, and the best that can be reached on it."""

from __future__ import annotations

from itertools import product

import pytest
import torch

from atomsep.experiments.synthetic.mixtures import (
    MixtureClassifier,
    bayes_rate,
    draw,
    majority_posterior,
)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_sub_units_follow_their_class() -> None:
    samples = draw(40_000, generator())
    of_a, of_b = samples.values[samples.members], samples.values[~samples.members]
    assert samples.members.double().mean() == pytest.approx(0.5, abs=0.005)
    assert (of_a.mean().item(), of_b.mean().item()) == pytest.approx((1, -1), abs=0.01)
    assert (of_a.std().item(), of_b.std().item()) == pytest.approx((0.5, 0.5), abs=0.01)


def test_label_is_the_majority_of_the_true_memberships() -> None:
    samples = draw(500, generator())
    by_hand = [int(row.count(True) > row.count(False)) for row in samples.members.tolist()]
    assert samples.labels.tolist() == by_hand
    by_sign = ((samples.values > 0).sum(1) > 2).long()
    assert (by_sign != samples.labels).any(), "the values alone must not give the label away"


def test_same_seed_draws_the_same_samples() -> None:
    first, again, other = draw(50, generator(3)), draw(50, generator(3)), draw(50, generator(4))
    assert torch.equal(first.values, again.values)
    assert not torch.equal(first.values, other.values)


def test_posterior_equals_the_sum_over_all_memberships() -> None:
    values = draw(20, generator()).values.double()
    densities = torch.stack(
        [torch.distributions.Normal(mean, 0.5).log_prob(values).exp() for mean in (-1.0, 1.0)]
    )
    majority = everything = torch.zeros(20, dtype=torch.float64)
    for members in product((0, 1), repeat=5):
        likelihood = torch.stack([densities[m, :, i] for i, m in enumerate(members)]).prod(0)
        everything = everything + likelihood
        if sum(members) > 2:
            majority = majority + likelihood
    torch.testing.assert_close(majority_posterior(values), majority / everything)


def test_bayes_rate_is_what_the_best_classifier_reaches() -> None:
    samples = draw(200_000, generator(5))
    right = (majority_posterior(samples.values) > 0.5).long() == samples.labels
    assert bayes_rate() == pytest.approx(right.double().mean().item(), abs=0.0015)


def test_classifier_shares_its_first_layer_among_sub_units() -> None:
    model = MixtureClassifier()
    hidden = model.hidden(torch.tensor([[0.3, -1.0, 0.3, 2.0, 0.3]])).view(5, 8)
    assert torch.equal(hidden[0], hidden[2])
    assert not torch.equal(hidden[0], hidden[1])
    assert model(torch.zeros(7, 5)).shape == (7, 2)
