"""How strongly the loss acts: the norm of its gradient at a layer against that of the task's.

The output is split into two aliases, one for the loss and one for the rest of the model, so that
autograd brings the two gradients to separate places. Each leaves three norms on its device, and
nobody waits for them until they are read.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from atomsep.core.distributed import Ranks
from atomsep.core.layout import Layout

NAMES = ("gradient_share", "gradient_share_charge", "gradient_share_positions")


class Strength:
    """Norms of the two gradients at the output of one forward.

    Args:
        layout: where the output's tokens are.
        feature: the feature that is the charge; None where learned maps read it.
    """

    def __init__(self, layout: Layout, feature: int | None) -> None:
        self.layout, self.feature = layout, feature
        self.own: Tensor | None = None
        self.task: Tensor | None = None

    def split(self, latent: Tensor, copy: bool) -> tuple[Tensor, Tensor]:
        """The output for the loss, and the one to hand on, which may be overwritten if copied."""
        for_loss = latent.view_as(latent)
        for_task = latent.clone() if copy else latent.view_as(latent)
        if latent.requires_grad:
            for_loss.register_hook(self._noting("own"))
            for_task.register_hook(self._noting("task"))
        return for_loss, for_task

    def _noting(self, name: str) -> Callable[[Tensor], None]:
        def note(grad: Tensor) -> None:
            setattr(self, name, self._norms(grad.detach()))

        return note

    @torch.no_grad()
    def _norms(self, grad: Tensor) -> Tensor:
        """Of the whole output and, unless a map reads it, of the charge and of the positions."""
        dtype = torch.float64 if grad.dtype == torch.float64 else torch.float32

        def norm(part: Tensor) -> Tensor:
            length: Tensor = torch.linalg.vector_norm(part, dtype=dtype)
            return length

        tokens = self.layout.tokens(grad)
        if self.feature is None:
            return norm(grad).unsqueeze(0)
        index = self.feature % tokens.shape[-1]
        # Apart, because the charge's part may be a hundred times larger than the rest.
        sides = torch.stack([norm(tokens[..., :index]), norm(tokens[..., index + 1 :])])
        return torch.stack([norm(grad), norm(tokens[..., index]), norm(sides)])

    def shares(self, total: Callable[[Tensor], Tensor] | None = None) -> dict[str, float]:
        """Norms of the loss's gradient over those of the task's; empty before both are there.

        Args:
            total: adds up squares over processes, for the norms over the samples of all; every
                process must then ask.
        """
        norms = self.norms()
        if norms is None:
            return {}
        if total is not None:
            norms = total(norms.double().square()).sqrt()
        return _ratios(norms)

    def norms(self) -> Tensor | None:
        """Those of the loss's gradient, then of the task's; None before both are there."""
        there = self.own is not None and self.task is not None
        return torch.stack([self.own, self.task]) if there else None  # type: ignore[list-item]


def shares_of_all(strength: Strength | None, ranks: Ranks, mapped: bool) -> dict[str, float]:
    """The shares over the samples of all processes, each of which must ask.

    Args:
        strength: of this process, which takes part also if it has none.
        ranks: the processes.
        mapped: whether learned maps read the features, so that only the whole gradient has a share.
    """
    norms = None if strength is None else strength.norms()
    if norms is None:
        norms = torch.zeros(2, 1 if mapped else len(NAMES))
    norms = ranks.total(norms.double().square()).sqrt()
    return _ratios(norms) if norms.any() else {}


def _ratios(norms: Tensor) -> dict[str, float]:
    own, task = norms.tolist()
    return {name: _ratio(*pair) for name, *pair in zip(NAMES, own, task, strict=False)}


def _ratio(own: float, task: float) -> float:
    if task == 0:
        return math.inf if own > 0 else math.nan
    return own / task
