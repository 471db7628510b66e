"""Styles: from noise to a style, and from a style to the scale and shift of features."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import leaky_relu, linear


class EqualisedLinear(nn.Module):
    """A linear layer whose weights are scaled when they are used, by r / sqrt(inputs).

    Args:
        inputs: number of inputs.
        outputs: number of outputs.
        rate: r, the share of the learning rate at which it learns.
        active: whether a leaky ReLU of gain sqrt(2) follows.
    """

    def __init__(self, inputs: int, outputs: int, rate: float = 1.0, active: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(outputs, inputs) / rate)
        self.bias = nn.Parameter(torch.zeros(outputs))
        self.rate, self.scale, self.active = rate, rate / math.sqrt(inputs), active

    def forward(self, x: Tensor) -> Tensor:
        """From `(M, inputs)` to `(M, outputs)`."""
        out = linear(x, self.weight * self.scale, self.bias * self.rate)
        return activate(out) if self.active else out


class PixelNorm(nn.Module):
    """Divides each vector by the root of the mean of its squares."""

    def forward(self, x: Tensor) -> Tensor:
        """From `(M, z)` to the same."""
        return x * torch.rsqrt(x.square().mean(1, keepdim=True) + 1e-8)


def mapping(z: int, depth: int = 8) -> nn.Sequential:
    """From noise `(M, z)` to styles `(M, z)`."""
    layers = [EqualisedLinear(z, z, rate=0.01, active=True) for _ in range(depth)]
    return nn.Sequential(PixelNorm(), *layers)


class StyleNorm(nn.Module):
    """Normalises each feature over the tokens of a sample, then scales and shifts it by the style.

    Args:
        features: features of a token.
        z: length of a style.
    """

    def __init__(self, features: int, z: int) -> None:
        super().__init__()
        self.style = EqualisedLinear(z, 2 * features)

    def forward(self, x: Tensor, style: Tensor) -> Tensor:
        """From tokens `(M, H, W, C)` to the same."""
        scale, shift = self.style(style).to(x.dtype)[:, None, None].chunk(2, -1)
        variance, mean = torch.var_mean(x, (1, 2), correction=0, keepdim=True)
        return torch.addcmul(shift, x - mean, scale * torch.rsqrt(variance + 1e-5))


def activate(x: Tensor) -> Tensor:
    """A leaky ReLU that keeps the size of its inputs, on average."""
    return leaky_relu(x, 0.2) * math.sqrt(2)
