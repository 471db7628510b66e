"""What a batch norm made a latent of, so that the backward pass can recompute it.

The gradient needs the layer's output as it was. Where the model overwrites or releases it, as
with a batch norm before a ReLU, keeping it takes a copy of the latent. But the batch norm keeps
its input for its own backward pass, and its output is only a factor and a shift per channel away
from that. `atomsep.hooks.origin` finds these.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F


class Affine(NamedTuple):
    """What a batch norm applies after normalising, and eps."""

    weight: Tensor | None
    bias: Tensor | None
    eps: float
    version: int

    def normalize(self, source: Tensor) -> Tensor:
        """The output of the layer in training, differentiable.

        Raises:
            RuntimeError: the bias has been modified. (The layer's own gradient needs the weight,
                so autograd checks that itself.)
        """
        if self.bias is not None and self.bias._version != self.version:
            raise RuntimeError(
                "the bias of a batch norm with atom modeling was modified in place between the "
                "forward pass and a backward pass with create_graph=True; call optimizer.step() "
                "after the backward pass"
            )
        return F.batch_norm(source, None, None, self.weight, self.bias, training=True, eps=self.eps)


class Origin(NamedTuple):
    """What a batch norm in training computed its output from.

    Attributes:
        source: its input.
        mean: of the batch, per channel.
        inverse_deviation: one over the standard deviation, per channel.
        affine: what was applied then.
    """

    source: Tensor
    mean: Tensor
    inverse_deviation: Tensor
    affine: Affine

    def line(self) -> tuple[Tensor, Tensor]:
        """Stretch and shift per channel that turn the source into the output, in float32."""
        weight, bias = self.affine[:2]
        mean, stretch = self.mean.float(), self.inverse_deviation.float()
        if weight is not None:
            stretch = stretch * weight
        if bias is None:
            return stretch, -mean * stretch
        return stretch, torch.addcmul(bias.float(), mean, stretch, value=-1)
