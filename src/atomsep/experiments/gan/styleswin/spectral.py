"""Layers whose weight is divided by its spectral norm (Miyato et al., 2018).

The norm is estimated by one step of power iteration per training forward, in float32 whatever
autocast says. Names are those of `torch.nn.utils.spectral_norm`.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d, linear, normalize

from atomsep.experiments.gan.convolution import FirstPass, convolve


class Spectral(nn.Module):
    """A weight of spectral norm 1.

    Args:
        weight: the initial weight; its first axis is that of the outputs.
    """

    weight_u: Tensor
    weight_v: Tensor

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.weight_orig = nn.Parameter(weight.detach())
        rows, columns = weight.flatten(1).shape
        self.register_buffer("weight_u", normalize(torch.randn(rows), dim=0))
        self.register_buffer("weight_v", normalize(torch.randn(columns), dim=0))

    @property
    def weight(self) -> Tensor:
        """The weight to use; each call in training estimates its norm better."""
        with torch.autocast(self.weight_orig.device.type, enabled=False):
            matrix = self.weight_orig.flatten(1)
            u, v = self.weight_u, self.weight_v
            if self.training:
                with torch.no_grad():
                    v = normalize(matrix.T @ u, dim=0)
                    u = normalize(matrix @ v, dim=0)
                    self.weight_u.copy_(u)
                    self.weight_v.copy_(v)
            return self.weight_orig / (u @ (matrix @ v))


class SpectralConv(Spectral):
    """A convolution without bias.

    Args:
        inputs: channels before.
        outputs: channels after.
        kernel: height and width of the kernel.
        stride: its step.
        padding: zeros on every side.

    Attributes:
        first: set while a gradient is computed that will be differentiated again.
    """

    def __init__(
        self, inputs: int, outputs: int, kernel: int, stride: int = 1, padding: int = 0
    ) -> None:
        super().__init__(nn.Conv2d(inputs, outputs, kernel).weight)
        self.stride, self.padding = stride, padding
        self.first: FirstPass | None = None

    def forward(self, x: Tensor) -> Tensor:
        """From `(M, inputs, H, W)` to `(M, outputs, H', W')`."""
        if self.first is None:
            return conv2d(x, self.weight, None, self.stride, self.padding)
        return convolve(self, x, self.first)


class SpectralLinear(Spectral):
    """A linear layer."""

    def __init__(self, inputs: int, outputs: int) -> None:
        layer = nn.Linear(inputs, outputs)
        super().__init__(layer.weight)
        self.bias = layer.bias

    def forward(self, x: Tensor) -> Tensor:
        """From `(M, inputs)` to `(M, outputs)`."""
        return linear(x, self.weight, self.bias)
