"""VQ: replace every token with the nearest of a set of learned codes."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding

from atomsep.functional import widen
from atomsep.methods.base import Method, checked_weight

BLOCK = 1 << 24
"""Scores, one per token and code, that are computed at a time."""


class VQ(Method):
    r"""Vector quantisation of van den Oord et al., "Neural Discrete Representation Learning",
    NeurIPS 2017, as in the code that the paper names.

    With $z$ a token, $e$ its nearest code and sg the stop-gradient, the mean over all real tokens
    and features of

    $$\beta_z\,(z - \text{sg}(e))^2 + \beta_e\,(e - \text{sg}(z))^2 .$$

    `pass_on` returns the codes; their gradient goes straight through to the tokens. The loss is
    computed from the tokens themselves. The K codes are initialised from U(-1/K, 1/K); there is no
    moving average, and dead codes are not revived.

    Args:
        features: h, the length of a code.
        codes: K, the number of codes.
        commitment: $\beta_z$, which pulls tokens towards their codes.
        codebook: $\beta_e$, which pulls codes towards their tokens. The named code has 0.25 here
            and 1 for the commitment, van den Oord et al. the reverse:
            `codebook=1, commitment=0.25`.
        seed: seed of the initial codes.

    Shape:
        - latent: `(M, N, h)`
        - output: scalar, float32 at least

    Example:
        >>> quantiser = VQ(features=1, codes=2)
        >>> quantiser.codes.data = torch.tensor([[0.0], [1.0]])
        >>> latent = torch.tensor([[[0.1], [0.8]]])
        >>> quantiser.pass_on(latent)
        tensor([[[0.],
                 [1.]]])
        >>> print(f"{quantiser(latent):.5f}")  # 1.25 · (0.1² + 0.2²) / 2
        0.03125
    """

    def __init__(
        self,
        features: int,
        codes: int = 512,
        commitment: float = 1.0,
        codebook: float = 0.25,
        seed: int = 0,
    ) -> None:
        super().__init__()
        if codes < 1:
            raise ValueError(f"codes must be at least 1, not {codes!r}")
        generator = torch.Generator().manual_seed(seed)
        initial = torch.rand(codes, features, generator=generator, dtype=torch.float32)
        self.codes = nn.Parameter((2 * initial - 1) / codes)
        self.commitment = checked_weight("commitment", commitment)
        self.codebook = checked_weight("codebook", codebook)

    def loss(
        self, latent: Tensor, labels: Tensor | None, mask: Tensor | None, second: Tensor | None
    ) -> Tensor:
        """Mean squared distance between tokens and codes, with both stop-gradients."""
        tokens = widen(latent)[mask] if mask is not None else widen(latent).flatten(0, 1)
        codes = self._quantise(tokens)
        commitment = (tokens - codes.detach()).square().mean()
        codebook = (codes - tokens.detach()).square().mean()
        return self.commitment * commitment + self.codebook * codebook

    def pass_on(self, latent: Tensor) -> Tensor:
        """The nearest codes, `(M, N, h)`; their gradient goes to the latent unchanged."""
        with torch.autocast(latent.device.type, enabled=False):
            codes = self._quantise(widen(latent).flatten(0, 1)).detach()
        # z - sg(z) is 0, so the codes are exact; z + sg(e - z) would round them.
        return codes.view_as(latent).to(latent.dtype) + (latent - latent.detach())

    def nearest(self, tokens: Tensor) -> Tensor:
        """Index of the code nearest to each token, `(T, h) -> (T,)`.

        Raises:
            ValueError: tokens and codes have different numbers of features.

        Example:
            >>> quantiser = VQ(features=1, codes=2)
            >>> quantiser.codes.data = torch.tensor([[0.0], [1.0]])
            >>> quantiser.nearest(torch.tensor([[0.1], [0.8]]))
            tensor([0, 1])
        """
        count, features = self.codes.shape
        if tokens.shape[-1] != features:
            raise ValueError(
                f"the codes have {features} features, but the tokens have {tokens.shape[-1]}; "
                f"pass features={tokens.shape[-1]}"
            )
        with torch.no_grad():
            codes = self.codes.to(tokens.dtype)
            # |z|² is the same for all codes, and would swamp the differences of small codes.
            scores = (
                codes.square().sum(1) - 2 * rows @ codes.T
                for rows in tokens.split(max(1, BLOCK // count))
            )
            return torch.cat([score.argmin(1) for score in scores])

    def _quantise(self, tokens: Tensor) -> Tensor:
        return embedding(self.nearest(tokens), self.codes.to(tokens.dtype))
