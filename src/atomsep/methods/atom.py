"""Atom modeling as one method among the others."""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from atomsep.checks import Norm, PositionMap, Scale, ScoreMap
from atomsep.core.loss import AtomLoss
from atomsep.functional import DEFAULT_SOFTENING
from atomsep.methods.base import Method


class Atom(Method):
    """[`AtomLoss`][atomsep.AtomLoss] behind the interface of the methods.

    Needs neither labels nor a second view. The paper's ablations leave constraints out:
    `neutrality=0` is "w/o constraint 1", `occupancy=0` "w/o constraint 2".

    Args:
        norm: see [`AtomLoss`][atomsep.AtomLoss], as all others.
        scale: "mean" or "sum".
        neutrality: weight of the first constraint.
        occupancy: weight of the second constraint.
        softening: length below which nuclei count as touching.
        charge: the feature that is the raw score, or a map.
        position: None for all other features, or a map.
        pairs: "all" or "sampled".
        tokens: None for all, or how many random tokens of each sample to take.
        seed: of the loss's own generator.

    Example:
        >>> import torch
        >>> latent = torch.tensor([[[1.0, 0.0], [-1.0, 1.0]], [[2.0, 1.0], [-2.0, 0.0]]])
        >>> print(f"{Atom()(latent):.4f}")
        0.4391
    """

    def __init__(
        self,
        norm: Norm = 2,
        scale: Scale = "mean",
        neutrality: float = 1.0,
        occupancy: float = 1.0,
        softening: float = DEFAULT_SOFTENING,
        charge: ScoreMap = 0,
        position: PositionMap = None,
        pairs: Literal["all", "sampled"] = "all",
        tokens: int | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.criterion = AtomLoss(
            norm, scale, neutrality, occupancy, softening, charge, position, pairs, tokens, seed
        )

    def loss(
        self, latent: Tensor, labels: Tensor | None, mask: Tensor | None, second: Tensor | None
    ) -> Tensor:
        """The criterion's loss."""
        value: Tensor = self.criterion(latent, mask)
        return value
