"""StyleSwin's discriminator: convolutions over the coefficients of Haar's wavelet.

At every resolution the coefficients of the smaller image enter again. All parameters have the names
of the published model, with spectral norm.
"""

from __future__ import annotations

import math
from itertools import pairwise

import torch
from torch import Tensor, nn

from atomsep.experiments.gan.convolution import FirstPass
from atomsep.experiments.gan.styleswin.colours import Colours
from atomsep.experiments.gan.styleswin.filters import Filter, haar, inverse_haar
from atomsep.experiments.gan.styleswin.sizes import LOWEST, features_at, sides_up_to
from atomsep.experiments.gan.styleswin.spectral import SpectralConv, SpectralLinear
from atomsep.experiments.gan.styleswin.style import activate

GROUP = 4
"""Samples whose deviation is a feature of each of them."""


class Discriminator(nn.Module):
    """From images `(M, 3, size, size)` in [-1, 1] to the logits that they are real, `(M,)`.

    Args:
        size: 64, 128 or 256.
        width: features at up to 32 px.
        multiplier: factor of the features at 64 px and more.

    Example:
        >>> import torch
        >>> Discriminator(size=64, width=8)(torch.randn(2, 3, 64, 64)).shape
        torch.Size([2])
    """

    def __init__(self, size: int = 256, width: int = 512, multiplier: int = 2) -> None:
        super().__init__()
        sides = [size, *sides_up_to(size // 4)[::-1]]
        features = [features_at(side, width, multiplier) for side in sides]
        self.from_rgbs = nn.ModuleList(FromRgb(count) for count in features)
        self.convs = nn.ModuleList(Halving(*each) for each in pairwise(features))
        last = features[-1]
        self.final_conv = nn.Sequential(SpectralConv(last + 1, last, 3, padding=1), Active(last))
        self.final_linear = nn.Sequential(
            SpectralLinear(last * LOWEST**2, last), Active(last), SpectralLinear(last, 1)
        )
        self.colours, self.halve = Colours(), Filter(padding=1, stride=2)

    def forward(self, images: Tensor) -> Tensor:
        """Logits of a batch of images."""
        return self.judge(self.colours.enter(images))

    def judge(self, images: Tensor) -> Tensor:
        """Logits of images in normalised colours."""
        first, *others = self.pyramid(images)
        x = self.from_rgbs[0](first)
        for conv, from_rgb, coefficients in zip(
            self.convs, self.from_rgbs[1:], others, strict=True
        ):
            x = conv(x) + from_rgb(coefficients)
        x = self.final_conv(torch.cat((x, deviation(x)), 1))
        logits: Tensor = self.final_linear(x.flatten(1))
        return logits.flatten()

    def pyramid(self, images: Tensor) -> list[Tensor]:
        """Coefficients `(M, 12, H / 2, W / 2)` of the images, and of ever smaller ones."""
        with torch.autocast(images.device.type, enabled=False):  # differences need all digits
            levels = [haar(images)]
            for _ in self.convs:
                levels.append(haar(self.halve(inverse_haar(levels[-1]))))
        return levels

    def with_gradient(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Logits, and the gradient of their sum by the images in normalised colours.

        The gradient can be differentiated again.
        """
        images, first = self.colours.enter(images).detach().requires_grad_(), FirstPass()
        convolutions = [each for each in self.modules() if isinstance(each, SpectralConv)]
        for each in convolutions:
            each.first = first
        try:
            logits = self.judge(images)
        finally:
            for each in convolutions:
                each.first = None
        with torch.autocast(images.device.type, enabled=False):  # it is for forward passes alone
            [gradient] = torch.autograd.grad(logits.sum(), images, create_graph=True)
        first.active = False
        return logits, gradient


class Active(nn.Module):
    """A bias per channel and a leaky ReLU, for `(M, C)` or `(M, C, H, W)`."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(channels))

    def forward(self, x: Tensor) -> Tensor:
        """From features to the same."""
        return activate(x + self.bias.to(x.dtype).reshape(-1, *(1,) * (x.ndim - 2)))


class FromRgb(nn.Module):
    """Features of the coefficients of a resolution."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Sequential(SpectralConv(12, channels, 1), Active(channels))

    def forward(self, coefficients: Tensor) -> Tensor:
        """From `(M, 12, H, W)` to `(M, channels, H, W)`."""
        features: Tensor = self.conv(coefficients)
        return features


class Halving(nn.Module):
    """Two convolutions, the second of which halves the side of a blurred image."""

    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        self.conv1 = nn.Sequential(SpectralConv(before, before, 3, padding=1), Active(before))
        self.conv2 = nn.Sequential(
            Filter(padding=2), SpectralConv(before, after, 3, stride=2), Active(after)
        )

    def forward(self, x: Tensor) -> Tensor:
        """From `(M, before, H, W)` to `(M, after, H / 2, W / 2)`."""
        out: Tensor = self.conv2(self.conv1(x))
        return out


def deviation(x: Tensor) -> Tensor:
    """How much the samples of a group differ, `(M, 1, H, W)`: the mean of all deviations.

    Groups have four samples; two in a batch that four does not divide, and all in an odd one, whose
    samples would otherwise be compared with nothing.

    Args:
        x: `(M, C, H, W)`.

    Example:
        >>> deviation(torch.tensor([1.0, 3.0]).reshape(2, 1, 1, 1)).flatten()
        tensor([1., 1.])
    """
    with torch.autocast(x.device.type, enabled=False):
        groups = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
        size = math.gcd(len(x), GROUP)
        groups = groups.reshape(size if size > 1 else len(x), -1, *x.shape[1:])
        spread = (groups.var(0, correction=0) + 1e-8).sqrt().mean((1, 2, 3))
        spread = spread.repeat(len(groups)).reshape(-1, 1, 1, 1)
    return spread.to(x.dtype).expand(-1, 1, *x.shape[2:])
