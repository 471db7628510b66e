"""MixCSE: SimCSE with negatives mixed from neighbours in the batch."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from atomsep.methods.base import concatenate, cosine
from atomsep.methods.simcse import SimCSE


class MixCSE(SimCSE):
    r"""Contrastive loss of Zhang et al., "Unsupervised Sentence Representation via Contrastive
    Learning with Mixing Negatives", AAAI 2022, as its authors released it.

    With $z$ and $z'$ the two views, indices modulo M and sg the stop-gradient,

    $$m_j = \text{sg}(\lambda z'_j + (1 - \lambda) z'_{j+1}), \quad
      n_i = \text{sg}(\lambda z_i + (1 - \lambda) z_{i+1}), \quad
      C_i = \sum_j \exp(\cos(z_i, z'_j)/\tau)$$

    $$\mathcal L = -\frac1M \sum_i \log \frac{\exp(\cos(z_i, z'_i)/\tau)}
      {C_i + \sum_{j \ne i-1} \exp(\cos(z_i, m_j)/\tau)
      + \sum_{j \ne i+1} \exp(\cos(n_i, z'_j)/\tau) + 2}$$

    The 2 stands for the two terms that the sums skip, whose mixtures are mostly the positive
    itself: the release sets their logits to 0, not to minus infinity.

    The atom-modeling paper prints another formula: only the first mixed sum, over mixtures of i
    with every j, of vectors normalised before they are mixed, with the temperature in one place.

    Args:
        temperature: τ above.
        mixing: λ above, the share of the vector itself in its mixture.

    Shape:
        - latent, second: `(M, N, h)`
        - output: scalar, float32 at least

    Example:
        >>> latent = torch.eye(3).unsqueeze(1)
        >>> loss = MixCSE(temperature=1.0)(latent, second=latent)
        >>> print(f"{loss:.4f}")
        1.4219
    """

    def __init__(self, temperature: float = 0.05, mixing: float = 0.2) -> None:
        super().__init__(temperature)
        if not 0 <= mixing <= 1:
            raise ValueError(f"mixing must be between 0 and 1, not {mixing!r}")
        self.mixing = mixing

    def loss(
        self, latent: Tensor, labels: Tensor | None, mask: Tensor | None, second: Tensor | None
    ) -> Tensor:
        """Cross-entropy over the M second views and 2M mixtures."""
        assert second is not None
        one, two = concatenate(latent, mask), concatenate(second, mask)
        itself = torch.eye(len(one), dtype=torch.bool, device=one.device)
        to_mixed = cosine(one, self._mix(two)).masked_fill(itself.roll(-1, 1), 0)
        from_mixed = cosine(self._mix(one), two).masked_fill(itself.roll(1, 1), 0)
        logits = torch.cat([cosine(one, two), to_mixed, from_mixed], 1) / self.temperature
        return cross_entropy(logits, torch.arange(len(one), device=one.device))

    def _mix(self, vectors: Tensor) -> Tensor:
        vectors = vectors.detach()
        return self.mixing * vectors + (1 - self.mixing) * vectors.roll(-1, 0)
