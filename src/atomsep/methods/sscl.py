"""SSCL: SimCLR without a second view, for generators."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from atomsep.methods.base import Method, checked_temperature, concatenate, cosine


class SSCL(Method):
    r"""The paper's self-supervised contrastive loss for image synthesis.

    $$\mathcal L = -\frac1M \sum_i
      \log \frac{\exp(\cos(h_i, h_i)/\tau)}{\sum_k \exp(\cos(h_i, h_k)/\tau)}
      = \frac1M \sum_i \log\left(1 + \sum_{k \ne i} \exp\frac{\cos(h_i, h_k) - 1}{\tau}\right)$$

    Each sample is its own positive, and $\cos(h_i, h_i) = 1$ whatever the model does. Only the
    negatives have a gradient: the loss spreads the directions of the samples.

    Args:
        temperature: τ above.

    Shape:
        - latent: `(M, N, h)`
        - output: scalar, float32 at least

    Example:
        >>> print(f"{SSCL()(torch.eye(2).unsqueeze(1)):.4f}")  # log(1 + exp(-2))
        0.1269
    """

    def __init__(self, temperature: float = 0.5) -> None:
        super().__init__()
        self.temperature = checked_temperature(temperature)

    def loss(
        self, latent: Tensor, labels: Tensor | None, mask: Tensor | None, second: Tensor | None
    ) -> Tensor:
        """Cross-entropy over the batch, with the sample itself as the target."""
        vectors = concatenate(latent, mask)
        itself = torch.eye(len(vectors), dtype=torch.bool, device=vectors.device)
        # 1 by definition; a computed value would add rounding errors to the gradient.
        similarity = cosine(vectors, vectors).masked_fill(itself, 1)
        target = torch.arange(len(vectors), device=vectors.device)
        return cross_entropy(similarity / self.temperature, target)
