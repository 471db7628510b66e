"""SimCLR: tell two augmented views of a sample from those of all other samples."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from atomsep.methods.base import Method, checked_temperature, concatenate, cosine


class SimCLR(Method):
    r"""NT-Xent loss of Chen et al., "A Simple Framework for Contrastive Learning of Visual
    Representations", ICML 2020.

    $$\mathcal L = -\frac{1}{2M} \sum_{i=1}^{2M}
      \log \frac{\exp(\cos(h_i, h_{j(i)})/\tau)}{\sum_{k \ne i} \exp(\cos(h_i, h_k)/\tau)}$$

    over both views of all samples, where j(i) is the other view of i. The loss acts on the layer
    itself, without a projection head.

    Args:
        temperature: τ above.

    Shape:
        - latent, second: `(M, N, h)`
        - output: scalar, float32 at least

    Example:
        >>> latent = torch.eye(2).unsqueeze(1)
        >>> print(f"{SimCLR()(latent, second=latent):.4f}")  # log(1 + 2 exp(-2))
        0.2395
    """

    second_view = "augmentation"

    def __init__(self, temperature: float = 0.5) -> None:
        super().__init__()
        self.temperature = checked_temperature(temperature)

    def loss(
        self, latent: Tensor, labels: Tensor | None, mask: Tensor | None, second: Tensor | None
    ) -> Tensor:
        """Cross-entropy over the other 2M - 1 views."""
        assert second is not None
        views = torch.cat([concatenate(latent, mask), concatenate(second, mask)])
        itself = torch.eye(len(views), dtype=torch.bool, device=views.device)
        logits = (cosine(views, views) / self.temperature).masked_fill(itself, -torch.inf)
        target = torch.arange(len(views), device=views.device).roll(len(latent))
        return cross_entropy(logits, target)
