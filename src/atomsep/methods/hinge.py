"""Hinge losses: samples nearer to their own class than to the others, in a p-norm."""

from __future__ import annotations

import torch
from torch import Tensor

from atomsep.checks import Norm, check_norm
from atomsep.functional import nuclear_distance
from atomsep.methods.base import Method, concatenate

BLOCK = 1 << 25
"""Numbers that the backward pass of one block of distances may keep."""


class Hinge(Method):
    r"""Hinge loss of the paper, "Hinge (1-norm)" and "Hinge (2-norm)".

    $$\mathcal L = \operatorname{mean}_{i,+,-}
      \max(0, \lVert h_i - h_+ \rVert_p - \lVert h_i - h_- \rVert_p)$$

    over all triplets of the batch: a sample, another of its class, one of another class. There is
    no margin. Triplets with loss 0 count in the mean, so that the loss is the paper's sum up to a
    factor. A batch without triplets has loss 0.

    Args:
        norm: 1 or 2.

    Shape:
        - latent: `(M, N, h)`; labels: `(M,)`
        - output: scalar, float32 at least

    Example:
        >>> latent = torch.tensor([[[0.0]], [[3.0]], [[1.0]]])
        >>> Hinge(norm=2)(latent, torch.tensor([0, 0, 1]))  # max(0, 3 - 1) and max(0, 3 - 2)
        tensor(1.5000)
    """

    needs_labels = True

    def __init__(self, norm: Norm = 2) -> None:
        super().__init__()
        check_norm(norm)
        self.norm: Norm = norm

    def loss(
        self, latent: Tensor, labels: Tensor | None, mask: Tensor | None, second: Tensor | None
    ) -> Tensor:
        """Distances in the norm, then the mean over triplets."""
        assert labels is not None
        return mean_over_triplets(distances(concatenate(latent, mask), self.norm), labels)


def distances(vectors: Tensor, norm: Norm) -> Tensor:
    """Distances between all pairs of rows, `(M, M)`, from exact differences.

    They are computed in blocks of rows: on a GPU the backward pass of `torch.cdist` keeps one
    difference per pair, and these vectors hold all features of all tokens.

    Example:
        >>> distances(torch.tensor([[0.0, 0.0], [3.0, 4.0]]), norm=2)
        tensor([[0., 5.],
                [5., 0.]])
    """
    blocks = vectors.split(max(1, BLOCK // vectors.numel()))
    return torch.cat([nuclear_distance(rows, vectors, norm) for rows in blocks])


def mean_over_triplets(distance: Tensor, labels: Tensor, margin: float = 0.0) -> Tensor:
    r"""Mean over all triplets of the batch of max(0, d(i, +) - d(i, -) + margin), a scalar.

    There are M³ triplets, but each term is linear where it is not 0, so the sum is over pairs:

    $$\sum_{i,+} n_{i+}\,(d_{i+} + \text{margin}) - \sum_{i,-} n_{i-}\,d_{i-}$$

    where $n$ counts the violated triplets that a pair belongs to. Sorting gives the counts.

    Args:
        distance: distance from sample i to sample j, `(M, M)`.
        labels: the classes, `(M,)`.
        margin: by how much the own class must be nearer.

    Example:
        >>> distance = torch.tensor([[0.0, 3.0, 1.0], [3.0, 0.0, 2.0], [1.0, 2.0, 0.0]])
        >>> mean_over_triplets(distance, torch.tensor([0, 0, 1]))
        tensor(1.5000)
    """
    with torch.no_grad():  # the counts are constant almost everywhere
        same = labels.unsqueeze(1) == labels
        positive = same.clone().fill_diagonal_(False)
        reach = distance + margin
        near = torch.where(same, torch.inf, distance).sort(1).values
        far = torch.where(positive, reach, -torch.inf).sort(1).values
        # Strict on both sides: a triplet of exactly 0 has no gradient.
        with_positive = torch.searchsorted(near, reach).where(positive, 0)
        with_negative = len(labels) - torch.searchsorted(far, distance.contiguous(), right=True)
        triplets = (positive.sum(1) * (~same).sum(1)).sum().clamp(min=1).to(distance.dtype)
        weight = (with_positive - with_negative.where(~same, 0)) / triplets
        offset = margin * (with_positive.sum() / triplets)
    return (distance * weight).sum() + offset
