"""KoLeo: keep every sample away from its nearest neighbour."""

from __future__ import annotations

import torch
from torch import Tensor

from atomsep.methods.base import Method, mean_token, unit

EPS = 1e-8
"""As in DINOv2 and in lightly: added to every difference, and to the distance."""


class KoLeo(Method):
    r"""Differential entropy regulariser of Sablayrolles et al., "Spreading Vectors for Similarity
    Search", ICLR 2019, as DINOv2 uses it.

    $$\mathcal L = -\frac1M \sum_i \log \min_{j \ne i} \lVert u_i - u_j \rVert_2$$

    where $u_i$ is the mean of the sample's real tokens, scaled to unit length. Equal samples have
    no direction in which to part: they get no gradient. A single sample has loss 0.

    Shape:
        - latent: `(M, N, h)`
        - output: scalar, float32 at least

    Example:
        >>> print(f"{KoLeo()(torch.eye(2).unsqueeze(1)):.4f}")  # -log(sqrt(2))
        -0.3466
    """

    def __init__(self) -> None:
        super().__init__()

    def loss(
        self, latent: Tensor, labels: Tensor | None, mask: Tensor | None, second: Tensor | None
    ) -> Tensor:
        """Mean over samples of the negative log distance to the nearest other one."""
        vectors = unit(mean_token(latent, mask))
        if len(vectors) == 1:
            return 0 * vectors.sum()
        with torch.no_grad():
            similarity = (vectors @ vectors.T).fill_diagonal_(-2)  # below any cosine
            nearest = similarity.argmax(1)
        difference = vectors - vectors[nearest]
        apart = (difference != 0).any(1, keepdim=True)
        difference = difference.where(apart, 0)  # cuts the gradient, which would be 1e8
        distance: Tensor = torch.linalg.vector_norm(difference + EPS, dim=1)
        return -(distance + EPS).log().mean()
