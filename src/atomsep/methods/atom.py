"""Atom modeling behind the interface of the methods."""

from __future__ import annotations

from collections.abc import Callable
from statistics import fmean
from typing import Any, Literal

from torch import Tensor, nn

from atomsep.checks import Norm, PositionMap, Scale, ScoreMap
from atomsep.core.loss import AtomLoss
from atomsep.functional import DEFAULT_SOFTENING
from atomsep.hooks.attaching import attach
from atomsep.hooks.attachment import Attachment
from atomsep.hooks.targets import Target
from atomsep.methods.base import Method
from atomsep.methods.binding import Binding


class Atom(Method):
    """[`AtomLoss`][atomsep.AtomLoss] as a method.

    It needs neither labels nor a second view. The paper's ablations leave constraints out:
    `neutrality=0` is "w/o constraint 1", `occupancy=0` is "w/o constraint 2". `energy=0` keeps
    only the constraints.

    Args:
        norm: see [`AtomLoss`][atomsep.AtomLoss] for all arguments.
        scale: "mean" or "sum".
        neutrality: weight of the first constraint.
        occupancy: weight of the second constraint.
        softening: length below which nuclei count as touching.
        charge: the feature that is the raw score, or a map.
        position: None for all other features, or a map.
        pairs: "all" or "sampled".
        tokens: None for all, or how many random tokens to take per sample.
        seed: seed of the loss's own generator.
        energy: weight of the energy.

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
        *,
        energy: float = 1.0,
    ) -> None:
        super().__init__()
        self.criterion = AtomLoss(
            *(norm, scale, neutrality, occupancy, softening, charge, position, pairs, tokens, seed),
            energy=energy,
        )

    @property
    def capturable(self) -> bool:
        """Sampled pairs and tokens are drawn on the host."""
        return not self.criterion.samples

    def loss(
        self, latent: Tensor, labels: Tensor | None, mask: Tensor | None, second: Tensor | None
    ) -> Tensor:
        """The criterion's loss."""
        value: Tensor = self.criterion(latent, mask)
        return value

    def bind(self, model: nn.Module, layer: Target, **how: Any) -> AtomBinding:
        """Attach the criterion to one or several layers; see [`attach`][atomsep.attach]."""
        return AtomBinding(attach(model, layer, self.criterion, **how))


class AtomBinding(Binding):
    """Atom modeling on a layer, through an attachment.

    Attributes:
        attachment (Attachment): has the statistics and the layers' names.
    """

    def __init__(self, attachment: Attachment) -> None:
        self.attachment = attachment

    def loss(self, labels: Tensor | None = None, again: Callable[[], Any] | None = None) -> Tensor:
        """The attachment's loss, which needs neither labels nor a second view."""
        return self.attachment.loss()

    @property
    def watch_gradients(self) -> bool:
        """Whether the attachment watches gradients."""
        return self.attachment.watch_gradients

    @watch_gradients.setter
    def watch_gradients(self, value: bool) -> None:
        self.attachment.watch_gradients = value

    @property
    def gradient_shares(self) -> dict[str, float]:
        """The attachment's shares; their means over the layers that the task's gradient reaches."""
        found = (tap.gradient_shares(self.total) for tap in self.attachment._taps)
        each = [shares for shares in found if shares]
        return {name: fmean(shares[name] for shares in each) for name in each[0]} if each else {}

    @property
    def stats(self) -> dict[str, float]:
        """The attachment's statistics but for the shares of gradients; means over the layers."""
        found = self.attachment.stats
        each = [found] if len(self.attachment.layers) == 1 else list(found.values())
        left_out = ("gradient_share", "training")
        names = [name for name in each[0] if not name.startswith(left_out)]
        return {name: fmean(stats[name] for stats in each) for name in names}

    @property
    def strength(self) -> Any:
        """The norms of each layer's gradients, its statistics and charges."""
        held = [tap.forwards.read() for tap in self.attachment._taps]
        return [(each.strength, each.taken, each.charge) for each in held]

    @strength.setter
    def strength(self, value: Any) -> None:
        for tap, each in zip(self.attachment._taps, value, strict=True):
            held = tap.forwards.read()
            held.strength, held.taken, held.charge = each

    @property
    def importance(self) -> Any:
        """The attachment's importance."""
        return self.attachment.importance

    def detach(self) -> None:
        """Remove every hook from the model."""
        self.attachment.detach()
