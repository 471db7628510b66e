"""VICReg: let every feature vary between samples, and no two of them together."""

from __future__ import annotations

import torch
from torch import Tensor

from atomsep.methods.base import Method, checked_weight, mean_token

EPS = 1e-4
"""Added to the variance, as published: a standard deviation of 0 has no slope."""


class VICReg(Method):
    r"""Variance and covariance terms of Bardes, Ponce and LeCun, "VICReg: Variance-Invariance-
    Covariance Regularization for Self-Supervised Learning", ICLR 2022.

    $$\mathcal L = \frac{\mu}{h} \sum_j \max\left(0, 1 - \sqrt{C_{jj} + \epsilon}\right)
      + \frac{\nu}{h} \sum_{j \ne k} C_{jk}^2$$

    where $C$ is the covariance over the batch of the mean of a sample's real tokens. The invariance
    term is left out, because it needs two views. A single sample has loss 0.

    Args:
        variance: μ above.
        covariance: ν above.

    Shape:
        - latent: `(M, N, h)`
        - output: scalar, float32 at least

    Example:
        >>> latent = torch.tensor([[[0.0, 1.0]], [[0.0, 3.0]]])
        >>> print(f"{VICReg(variance=1.0)(latent):.3f}")  # (1 - sqrt(0.0001)) / 2
        0.495
    """

    def __init__(self, variance: float = 25.0, covariance: float = 1.0) -> None:
        super().__init__()
        self.variance = checked_weight("variance", variance)
        self.covariance = checked_weight("covariance", covariance)

    def loss(
        self, latent: Tensor, labels: Tensor | None, mask: Tensor | None, second: Tensor | None
    ) -> Tensor:
        """Hinge on the standard deviations, and squares of the covariances."""
        vectors = mean_token(latent, mask)
        samples, features = vectors.shape
        if samples == 1:
            return 0 * vectors.sum()
        centred = vectors - vectors.mean(0)
        matrix = centred.T @ centred / (samples - 1)
        variance = torch.relu(1 - (matrix.diagonal() + EPS).sqrt()).mean()
        itself = torch.eye(features, dtype=torch.bool, device=matrix.device)
        covariance = matrix.masked_fill(itself, 0).square().sum() / features
        return self.variance * variance + self.covariance * covariance
