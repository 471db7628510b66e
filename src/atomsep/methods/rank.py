"""Rank-H: a ranking hinge on cosine similarities."""

from __future__ import annotations

from torch import Tensor

from atomsep.methods.base import Method, concatenate, cosine
from atomsep.methods.hinge import mean_over_triplets


class RankH(Method):
    r"""Ranking loss of Wang and Gupta, "Unsupervised Learning of Visual Representations using
    Videos", ICCV 2015.

    $$\mathcal L = \operatorname{mean}_{i,+,-} \max(0, \cos(h_i, h_-) - \cos(h_i, h_+) + m)$$

    over all triplets of the batch, as in [`Hinge`][atomsep.methods.Hinge]. The atom-modeling paper
    prints the two similarities the other way round, which would push a class apart; the cited work
    ranks by the distance $-\cos$, as here. Its second term, with $h_+$ as the anchor, is already
    part of the mean, in which each of two samples of a class is the anchor once.

    Args:
        margin: m above.

    Shape:
        - latent: `(M, N, h)`; labels: `(M,)`
        - output: scalar, float32 at least

    Example:
        >>> import torch
        >>> latent = torch.tensor([[[1.0, 0.0]], [[2.0, 0.0]], [[3.0, 4.0]]])
        >>> print(f"{RankH()(latent, torch.tensor([0, 0, 1])):.4f}")  # 0.6 - 1 + 0.5
        0.1000
    """

    needs_labels = True

    def __init__(self, margin: float = 0.5) -> None:
        super().__init__()
        if not 0 <= margin < float("inf"):
            raise ValueError(f"margin must be at least 0, not {margin!r}")
        self.margin = margin

    def loss(
        self, latent: Tensor, labels: Tensor | None, mask: Tensor | None, second: Tensor | None
    ) -> Tensor:
        """Distances -cos, then the mean over triplets."""
        assert labels is not None
        vectors = concatenate(latent, mask)
        return mean_over_triplets(-cosine(vectors, vectors), labels, self.margin)
