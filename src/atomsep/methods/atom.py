"""Atom modeling behind the interface of the methods."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from torch import Tensor, nn

from atomsep.core.loss import AtomLoss
from atomsep.hooks.attachment import Attachment, attach
from atomsep.hooks.targets import Target
from atomsep.methods.base import Method
from atomsep.methods.binding import Binding


class Atom(Method):
    """[`AtomLoss`][atomsep.AtomLoss] as a method.

    It needs neither labels nor a second view. The paper's ablations leave constraints out:
    `neutrality=0` is "w/o constraint 1", `occupancy=0` is "w/o constraint 2".

    Args:
        *settings: those of [`AtomLoss`][atomsep.AtomLoss], in its order or by name.
        **named: the same.

    Example:
        >>> import torch
        >>> latent = torch.tensor([[[1.0, 0.0], [-1.0, 1.0]], [[2.0, 1.0], [-2.0, 0.0]]])
        >>> print(f"{Atom()(latent):.4f}")
        0.4391
    """

    @wraps(AtomLoss.__init__)  # type: ignore[misc]
    def __init__(self, *settings: Any, **named: Any) -> None:
        super().__init__()
        self.criterion = AtomLoss(*settings, **named)

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
    def importance(self) -> Any:
        """The attachment's importance."""
        return self.attachment.importance

    def detach(self) -> None:
        """Take every hook off the model."""
        self.attachment.detach()
