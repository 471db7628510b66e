"""SimCSE: tell a sample under two dropout masks from all other samples."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from atomsep.methods.base import Method, checked_temperature, concatenate, cosine


class SimCSE(Method):
    r"""Contrastive loss of Gao, Yao and Chen, "SimCSE: Simple Contrastive Learning of Sentence
    Embeddings", EMNLP 2021, unsupervised.

    $$\mathcal L = -\frac1M \sum_i
      \log \frac{\exp(\cos(h_i, h_i^+)/\tau)}{\sum_j \exp(\cos(h_i, h_j^+)/\tau)}$$

    in one direction, from the first view to the second, as released. The loss acts on the layer
    itself, without a pooler.

    Args:
        temperature: τ above.

    Shape:
        - latent, second: `(M, N, h)`
        - output: scalar, float32 at least

    Example:
        >>> latent = torch.eye(2).unsqueeze(1)
        >>> print(f"{SimCSE(temperature=0.5)(latent, second=latent):.4f}")  # log(1 + exp(-2))
        0.1269
    """

    second_view = "dropout"

    def __init__(self, temperature: float = 0.05) -> None:
        super().__init__()
        self.temperature = checked_temperature(temperature)

    def loss(
        self, latent: Tensor, labels: Tensor | None, mask: Tensor | None, second: Tensor | None
    ) -> Tensor:
        """Cross-entropy over the M second views."""
        assert second is not None
        similarity = cosine(concatenate(latent, mask), concatenate(second, mask))
        target = torch.arange(len(latent), device=latent.device)
        return cross_entropy(similarity / self.temperature, target)
