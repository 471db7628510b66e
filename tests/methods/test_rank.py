"""Rank-H against pytorch-metric-learning, the triple loop, and its direction."""

from __future__ import annotations

import pytest
import torch
from agreement import BATCHES, LABELS, agree, cos, vectors
from pytorch_metric_learning.distances import CosineSimilarity
from pytorch_metric_learning.losses import TripletMarginLoss
from pytorch_metric_learning.reducers import MeanReducer
from reference import make_batch
from torch import Tensor

from atomsep.methods import RankH


def looped(rows: list[Tensor], labels: Tensor) -> Tensor:
    """Each pair of a class once, in both directions, as in Wang and Gupta."""
    terms = []
    for i in range(len(rows)):
        for j in range(i + 1, len(rows)):
            for k in range(len(rows)):
                if labels[i] == labels[j] and labels[i] != labels[k]:
                    positive = cos(rows[i], rows[j])
                    terms.append((cos(rows[i], rows[k]) - positive + 0.5).clamp(min=0))
                    terms.append((cos(rows[j], rows[k]) - positive + 0.5).clamp(min=0))
    return torch.stack(terms).mean()


@pytest.mark.parametrize(("latent", "mask"), BATCHES.values(), ids=BATCHES)
def test_equals_the_loop_in_both_directions(latent: Tensor, mask: Tensor | None) -> None:
    agree(lambda x: RankH()(x, LABELS, mask), lambda x: looped(vectors(x, mask), LABELS), latent)


@pytest.mark.parametrize("margin", [0.0, 0.5])
def test_equals_pytorch_metric_learning(margin: float) -> None:
    peer = TripletMarginLoss(margin=margin, distance=CosineSimilarity(), reducer=MeanReducer())
    latent, labels = make_batch(32, 4, 3, seed=1), torch.arange(32) % 5
    agree(lambda x: RankH(margin)(x, labels), lambda x: peer(x.flatten(1), labels), latent)


def test_a_step_turns_a_class_together_and_others_away() -> None:
    latent = make_batch(6, 2, 4, seed=2).requires_grad_()
    (slope,) = torch.autograd.grad(RankH()(latent, LABELS), latent)

    def gap(x: Tensor) -> Tensor:
        unit = torch.nn.functional.normalize(x.flatten(1))
        similarity, same = unit @ unit.T, LABELS.unsqueeze(1) == LABELS
        within = same & ~torch.eye(6, dtype=torch.bool)
        return similarity[within].mean() - similarity[~same].mean()

    assert gap(latent - 0.1 * slope) > gap(latent)


def test_gradcheck() -> None:
    latent = make_batch(6, 2, 2, seed=3).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: RankH()(x, LABELS), latent)


def test_a_margin_below_zero_is_refused() -> None:
    with pytest.raises(ValueError, match="margin must be at least 0, not -0.5"):
        RankH(-0.5)
