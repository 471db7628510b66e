"""Deletion, insertion and the truth, on models whose true importance is known."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
import torch
from captum.attr import FeatureAblation
from sklearn.metrics import jaccard_score, roc_auc_score
from torch import Tensor, nn

from atomsep.importance import to_pixels
from atomsep.importance.faithful import (
    area,
    auc,
    block_sums,
    deletion_and_insertion,
    iou,
    rank_tokens,
)
from atomsep.importance.rivals import captum_maps, centre_map, layers_with_maps, random_map

WEIGHTS = torch.tensor([[0.5, -1.0], [4.0, 2.0]])
"""True importance of the four tokens of the known model."""


def known(images: Tensor) -> Tensor:
    """The weighted sum of the means of the four quarters of an image."""
    return (nn.functional.avg_pool2d(images[:, 0], images.shape[-1] // 2) * WEIGHTS).sum((1, 2))


def test_the_curves_and_areas_of_a_known_model() -> None:
    images, blank = torch.ones(1, 1, 6, 6), torch.zeros(1)
    found = deletion_and_insertion(known, images, blank, WEIGHTS[None], steps=4)
    assert found.shares.tolist() == [0, 0.25, 0.5, 0.75, 1]
    assert found.deletion[0].tolist() == pytest.approx([5.5, 1.5, -0.5, -1, 0])
    assert found.insertion[0].tolist() == pytest.approx([0, 4, 6, 6.5, 5.5])
    # Trapezoids: a quarter of the inner points, and an eighth of both ends.
    assert float(area(found.shares, found.deletion)) == pytest.approx(5.5 / 8)
    assert float(area(found.shares, found.insertion)) == pytest.approx(16.5 / 4 + 5.5 / 8)
    halves = deletion_and_insertion(known, images, blank, WEIGHTS[None], steps=2)
    assert halves.deletion[0].tolist() == pytest.approx([5.5, -0.5, 0])


def test_no_order_is_better_than_the_true_one() -> None:
    orders = torch.tensor(list(permutations(range(4)))).view(-1, 2, 2).float()
    images = torch.ones(len(orders), 1, 4, 4)
    found = deletion_and_insertion(known, images, torch.zeros(1), orders, steps=4)
    deletion, insertion = area(found.shares, found.deletion), area(found.shares, found.insertion)
    best = rank_tokens(orders).eq(rank_tokens(WEIGHTS[None])).all(-1).all(-1).nonzero()
    assert deletion.argmin() == insertion.argmax() == best.item()
    assert deletion.unique().numel() > 10  # the areas tell the orders apart


def test_insertion_is_the_deletion_of_the_opposite_map() -> None:
    images, scores = torch.randn(3, 3, 10, 15), torch.randn(3, 4, 5)
    blank = torch.randn_like(images)

    def predict(changed: Tensor) -> Tensor:
        return changed.flatten(1).sin().sum(1)

    one = deletion_and_insertion(predict, images, blank, scores, steps=10)
    other = deletion_and_insertion(predict, images, blank, -scores, steps=10)
    assert torch.equal(one.deletion, other.insertion.flip(1))
    assert torch.equal(one.insertion[:, -1], predict(images))
    assert torch.equal(one.deletion[:, -1], predict(blank))


def test_a_step_of_deletion_is_captums_feature_ablation() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Tanh(), nn.Flatten(), nn.Linear(4 * 16, 5))
    images, blank, scores = torch.randn(2, 3, 6, 6), torch.randn(2, 3, 6, 6), torch.randn(2, 3, 3)
    tokens = torch.arange(9.0).view(1, 3, 3).repeat_interleave(2, 1).repeat_interleave(2, 2)
    ablated = FeatureAblation(model).attribute(
        images, blank, target=2, feature_mask=tokens.long()[None]
    )

    def predict(changed: Tensor) -> Tensor:
        return model(changed)[:, 2]

    found = deletion_and_insertion(predict, images, blank, scores, steps=9)
    for row in range(2):
        first = int(scores[row].argmax())
        expected = ablated[row, 0][tokens[0] == first].unique()
        assert float(found.deletion[row, 0] - found.deletion[row, 1]) == pytest.approx(
            float(expected), abs=1e-5
        )


def test_equal_scores_do_not_prefer_the_top_of_the_image() -> None:
    ranks = rank_tokens(torch.zeros(1, 20, 20)).float()
    assert torch.equal(ranks, rank_tokens(torch.zeros(1, 20, 20)).float())
    assert 0.8 < float(ranks[0, :10].mean() / ranks[0, 10:].mean()) < 1.25
    mixed = torch.tensor([[1.0, 0.0, 1.0, 2.0]])
    assert rank_tokens(mixed)[0, [3, 1]].tolist() == [0, 3]


def test_scores_that_are_not_maps_of_the_images() -> None:
    images = torch.zeros(2, 1, 4, 4)
    with pytest.raises(ValueError, match=r"of 2 images must have shape \(2, h, w\), not \(2, 4\)"):
        deletion_and_insertion(known, images, images, torch.zeros(2, 4))
    with pytest.raises(ValueError, match="steps=16 must be between 1 and the number of tokens, 4"):
        deletion_and_insertion(known, images, images, torch.zeros(2, 2, 2))


@pytest.mark.parametrize(("size", "grid"), [((12, 8), (3, 4)), ((7, 10), (3, 4)), ((5, 5), (5, 5))])
def test_the_pixels_of_a_token_are_those_that_maps_show(
    size: tuple[int, int], grid: tuple[int, int]
) -> None:
    charges = torch.rand(2, *grid).mul(2).sub(1)
    shown = torch.from_numpy(to_pixels(charges, size))
    counts = block_sums(torch.ones(2, *size), grid)
    assert counts[0].sum() == size[0] * size[1]
    assert torch.allclose(block_sums(shown, grid), charges * counts, atol=1e-6)
    pixels = torch.rand(2, 1, *size)

    def kept(changed: Tensor) -> Tensor:
        return changed.ne(0).sum((1, 2, 3)).float()

    found = deletion_and_insertion(kept, pixels, torch.zeros(1), charges, steps=1)
    one = deletion_and_insertion(kept, pixels, torch.zeros(1), charges, steps=grid[0] * grid[1])
    removed = found.deletion[:, 0] - one.deletion[:, 1]
    assert torch.equal(removed, counts.flatten(1)[torch.arange(2), charges.flatten(1).argmax(1)])


def test_auc_and_iou_are_those_of_scikit_learn_over_pixels() -> None:
    torch.manual_seed(0)
    kinds = torch.randint(3, (5, 9, 11))  # object, background, border
    scores = torch.randn(5, 4, 3)
    scores[1] = scores[1].round()  # ties
    inside, outside = (block_sums((kinds == kind).float(), (4, 3)) for kind in (0, 1))
    found, overlap = auc(scores, inside, outside), iou(scores, inside, outside)
    shown = to_pixels(scores.tanh(), (9, 11))  # the same order
    ranks = to_pixels(-rank_tokens(scores).float() / 12, (9, 11))
    for row in range(5):
        known_pixels = (kinds[row] != 2).numpy()
        truth = (kinds[row] == 0).numpy()[known_pixels]
        assert float(found[row]) == pytest.approx(
            roc_auc_score(truth, np.round(shown[row][known_pixels], 6)), abs=1e-6
        )
        order = ranks[row][known_pixels]
        # The fewest tokens that have as many pixels as the object.
        cuts = [order >= cut for cut in np.unique(order)[::-1]]
        taken = next(cut for cut in cuts if cut.sum() >= truth.sum())
        assert float(overlap[row]) == pytest.approx(jaccard_score(truth, taken), abs=1e-6)


def test_the_truth_itself_is_found_and_its_opposite_is_not() -> None:
    inside = torch.zeros(2, 4, 4)
    inside[0, 1:3, 1:3] = 9.0
    outside = 9 - inside
    ones = torch.ones(1)
    assert auc(inside, inside, outside)[0] == iou(inside, inside, outside)[0] == ones
    assert auc(-inside, inside, outside)[0] == iou(-inside, inside, outside)[0] == 0
    assert auc(torch.zeros(2, 4, 4), inside, outside)[0] == 0.5
    assert auc(inside, inside, outside)[1].isnan()  # an image without the object
    assert auc(centre_map(2, (4, 4)), inside, outside)[0] == 1


class InPlace(nn.Module):
    """A norm whose output is overwritten, as in torchvision's ResNets."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 6, 3, padding=1, stride=2), nn.BatchNorm2d(6)
        self.head = nn.Linear(6, 4)

    def forward(self, images: Tensor) -> Tensor:
        latent = self.norm(self.conv(images))
        latent += 1
        return self.head(latent.relu_().mean((2, 3)))


def test_captums_maps_by_hand() -> None:
    torch.manual_seed(0)
    model = InPlace().double().eval()
    nn.init.normal_(model.norm.weight)
    images, blank = torch.randn(2, 2, 3, 8, 8).double().unbind()
    labels, grid = torch.tensor([1, 3]), (2, 4)
    maps = captum_maps(model, model, images, blank, labels, {"cam": model.norm}, grid)
    assert all(found.shape == (2, *grid) and not found.requires_grad for found in maps.values())
    pixels = images.clone().requires_grad_()
    chosen = model(pixels).gather(1, labels[:, None]).sum()
    [gradient] = torch.autograd.grad(chosen, pixels)
    by_hand = (gradient * images).sum(1).view(2, 2, 4, 4, 2).mean((2, 4))
    assert torch.allclose(maps["gradient x input"], by_hand)
    # What integrated gradients add up to is the difference of the predictions.
    difference = model(images) - model(blank)
    whole = 8 * maps["integrated gradients"].sum((1, 2))
    assert torch.allclose(whole, difference.gather(1, labels[:, None])[:, 0], rtol=0.02)
    latent = model.norm(model.conv(images)).detach().requires_grad_()
    logits = model.head((latent + 1).relu().mean((2, 3)))
    [slope] = torch.autograd.grad(logits.gather(1, labels[:, None]).sum(), latent)
    cam = (slope.mean((2, 3), keepdim=True) * latent).sum(1, keepdim=True).relu().detach()
    cam = nn.functional.interpolate(cam, grid, mode="bilinear")[:, 0]
    assert cam.abs().max() > 0
    assert torch.allclose(maps["cam"], cam)
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not model.norm._forward_hooks


def test_which_layers_have_maps() -> None:
    model = nn.Sequential(InPlace().conv, nn.Flatten(2), nn.Unflatten(2, (4, 4)), nn.AvgPool2d(4))
    assert layers_with_maps(model, lambda: model(torch.zeros(1, 3, 8, 8))) == ["0", "2"]
    assert not model[0]._forward_hooks
    generator = torch.Generator().manual_seed(0)
    drawn = [random_map(2, (3, 3), generator) for _ in range(2)]
    assert not torch.equal(*drawn)
