"""The hinge losses against pytorch-metric-learning, the triple loop, and their limits."""

from __future__ import annotations

import pytest
import torch
from agreement import BATCHES, LABELS, agree, vectors
from allocations import Allocations
from pytorch_metric_learning.distances import LpDistance
from pytorch_metric_learning.losses import TripletMarginLoss
from pytorch_metric_learning.reducers import MeanReducer
from reference import make_batch
from torch import Tensor

from atomsep.methods import Hinge, hinge
from atomsep.methods.hinge import distances, mean_over_triplets

norms = pytest.mark.parametrize("norm", [1, 2])
batches = pytest.mark.parametrize(("latent", "mask"), BATCHES.values(), ids=BATCHES)


def looped(rows: list[Tensor], labels: Tensor, norm: int) -> Tensor:
    terms = []
    for i, anchor in enumerate(rows):
        for j, positive in enumerate(rows):
            for k, negative in enumerate(rows):
                if i != j and labels[i] == labels[j] and labels[i] != labels[k]:
                    near = torch.linalg.vector_norm(anchor - positive, norm)
                    far = torch.linalg.vector_norm(anchor - negative, norm)
                    terms.append((near - far).clamp(min=0))
    return torch.stack(terms).mean()


@norms
@batches
def test_equals_the_triple_loop(latent: Tensor, mask: Tensor | None, norm: int) -> None:
    agree(
        lambda x: Hinge(norm)(x, LABELS, mask),
        lambda x: looped(vectors(x, mask), LABELS, norm),
        latent,
    )


@norms
def test_equals_pytorch_metric_learning(norm: int) -> None:
    peer = TripletMarginLoss(
        margin=0, distance=LpDistance(normalize_embeddings=False, p=norm), reducer=MeanReducer()
    )
    latent = make_batch(32, 4, 3, seed=1)
    labels = torch.arange(32) % 5
    agree(lambda x: Hinge(norm)(x, labels), lambda x: peer(x.flatten(1), labels), latent)


def test_its_default_reducer_leaves_out_the_triplets_that_cost_nothing() -> None:
    latent, labels = make_batch(32, 4, 3, seed=1), torch.arange(32) % 5
    peer = TripletMarginLoss(margin=0, distance=LpDistance(normalize_embeddings=False))
    violated = peer(latent.flatten(1), labels)
    distance = distances(latent.flatten(1), 2)
    i, j, k = (index.flatten() for index in torch.meshgrid(*[torch.arange(32)] * 3, indexing="ij"))
    valid = (i != j) & (labels[i] == labels[j]) & (labels[i] != labels[k])
    share = (distance[i, j] > distance[i, k])[valid].double().mean()
    assert 0 < share < 1
    torch.testing.assert_close(Hinge()(latent, labels), violated * share)


@norms
def test_a_step_brings_a_class_together_and_takes_others_away(norm: int) -> None:
    latent = make_batch(6, 2, 4, seed=2).requires_grad_()
    (slope,) = torch.autograd.grad(Hinge(norm)(latent, LABELS), latent)

    def gap(x: Tensor) -> Tensor:
        distance, same = torch.cdist(x.flatten(1), x.flatten(1), norm), LABELS[:, None] == LABELS
        within = same & ~torch.eye(6, dtype=torch.bool)
        return distance[~same].mean() - distance[within].mean()

    assert gap(latent - 0.1 * slope) > gap(latent)


@norms
def test_gradcheck(norm: int) -> None:
    latent = make_batch(6, 2, 2, seed=3).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: Hinge(norm)(x, LABELS), latent)


@pytest.mark.parametrize("labels", [[0, 0, 0], [0, 1, 2], [0]], ids=["one", "all", "single"])
@norms
def test_no_triplet_costs_nothing(labels: list[int], norm: int) -> None:
    latent = make_batch(len(labels), 2, 3, seed=4).requires_grad_()
    loss = Hinge(norm)(latent, torch.tensor(labels))
    (slope,) = torch.autograd.grad(loss, latent)
    assert loss == 0
    assert torch.equal(slope, torch.zeros_like(latent))


@norms
def test_ties_have_no_slope(norm: int) -> None:
    latent = torch.tensor([[[0.0]], [[1.0]], [[-1.0]]], requires_grad=True)
    labels = torch.tensor([0, 0, 1])
    loss = Hinge(norm)(latent, labels)  # 1 - 1 from the first, 1 - 2 from the second
    (slope,) = torch.autograd.grad(loss, latent)
    assert loss == 0
    assert torch.equal(slope, torch.zeros_like(latent))


@norms
def test_coincident_samples_of_two_classes(norm: int) -> None:
    latent = make_batch(6, 2, 3, seed=5)
    latent[1] = latent[0]
    latent.requires_grad_()
    (slope,) = torch.autograd.grad(Hinge(norm)(latent, LABELS), latent)
    assert slope.isfinite().all()
    assert slope.abs().max() > 0


def test_small_differences_of_large_vectors_survive() -> None:
    latent = torch.tensor([[[1000.0, 0.0]], [[1000.0, 0.3]], [[1000.0, -0.2]]])
    loss = Hinge()(latent, torch.tensor([0, 0, 1]))
    torch.testing.assert_close(loss, torch.tensor(0.05))  # max(0, 0.3 - 0.2), max(0, 0.3 - 0.5)


@norms
def test_blocks_change_nothing(norm: int, monkeypatch: pytest.MonkeyPatch) -> None:
    latent = make_batch(7, 2, 3, seed=6)
    weights = make_batch(7, 7, seed=7)

    def weighed(x: Tensor) -> Tensor:
        return (distances(x.flatten(1), norm) * weights).sum()

    def in_blocks(x: Tensor) -> Tensor:
        with monkeypatch.context() as patch:
            patch.setattr(hinge, "BLOCK", 2 * x.numel())
            return weighed(x)

    agree(weighed, in_blocks, latent)


def test_nothing_grows_with_the_number_of_triplets_or_of_pairs_times_features() -> None:
    latent = make_batch(20, 10, 6, seed=8).requires_grad_()
    with Allocations() as allocations:
        Hinge(2)(latent, torch.arange(20) % 3).backward()
    largest = max(torch.Size(shape).numel() for shape in allocations.shapes)
    assert largest == latent.numel()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@norms
def test_memory_on_a_gpu_does_not_grow_with_the_pairs(norm: int) -> None:
    latent = torch.randn(256, 64, 256, device="cuda", requires_grad=True)
    labels = torch.arange(256, device="cuda") % 10
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    Hinge(norm)(latent, labels).backward()
    used = torch.cuda.max_memory_allocated() - before
    assert used < 12 * latent.numel() * 4 + 8 * hinge.BLOCK
    assert used < latent.numel() * 4 * 256 / 8


def test_a_margin_is_added_to_every_triplet() -> None:
    distance = make_batch(6, 6, seed=9).abs()
    labels = LABELS.tolist()
    expected = [
        max(0.0, float(distance[i, j] - distance[i, k]) + 0.3)
        for i in range(6)
        for j in range(6)
        for k in range(6)
        if i != j and labels[i] == labels[j] and labels[i] != labels[k]
    ]
    actual = mean_over_triplets(distance, LABELS, 0.3)
    assert actual.item() == pytest.approx(sum(expected) / len(expected), rel=1e-12)


def test_the_norm_is_checked() -> None:
    with pytest.raises(ValueError, match="norm must be 1 or 2, not 3"):
        Hinge(3)  # type: ignore[arg-type]
