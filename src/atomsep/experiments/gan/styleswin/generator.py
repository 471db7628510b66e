"""StyleSwin's generator (Zhang et al., CVPR 2022).

Windows of tokens attend to themselves: half of the heads in a regular grid, the other half in one
that is shifted by half a window. The style acts through the norms. Relative positions are in the
attention's bias; absolute ones are added as sines after each upsampling.

Tokens are `(M, H, W, C)` throughout. All parameters have the names of the published model.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import interpolate

from atomsep.experiments.gan.styleswin.attention import WindowAttention
from atomsep.experiments.gan.styleswin.colours import Colours
from atomsep.experiments.gan.styleswin.filters import Double
from atomsep.experiments.gan.styleswin.sizes import LOWEST, features_at, heads_of, sides_up_to
from atomsep.experiments.gan.styleswin.style import StyleNorm, mapping

BACKENDS = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
"""Ways to compute attention: all but cuDNN's, which has no gradient by the bias."""

WINDOW = 8
"""Height and width of a window, where the image is as large."""


class Generator(nn.Module):
    """From noise `(M, z, 1, 1)` to images `(M, 3, size, size)` in about [-1, 1].

    Args:
        size: 64, 128 or 256.
        width: features at up to 32 px.
        multiplier: factor of the features at 64 px and more.
        z: length of noise and style.

    Attributes:
        hidden: passes on the last hidden layer of half the resolution, `(M, size / 2, size / 2,
            C)`, before the last upsampling.

    Example:
        >>> import torch
        >>> Generator(size=64, width=16, z=8)(torch.randn(2, 8, 1, 1)).shape
        torch.Size([2, 3, 64, 64])
    """

    def __init__(
        self, size: int = 256, width: int = 512, multiplier: int = 2, z: int = 512
    ) -> None:
        super().__init__()
        sides = sides_up_to(size)
        features = [features_at(side, width, multiplier) for side in sides]
        self.style = mapping(z)
        self.input = Constant(features[0])
        above: list[int | None] = [*features[1:], None]
        self.layers = nn.ModuleList(
            Layer(side, before, after, z)
            for side, before, after in zip(sides, features, above, strict=True)
        )
        self.to_rgbs = nn.ModuleList(ToRgb(count) for count in [*features[1:], features[-1]])
        self.hidden = nn.Identity()
        self.colours = Colours()
        self.apply(initialise)

    def forward(self, noise: Tensor) -> Tensor:
        """Images of a batch of noise."""
        with torch.autocast(noise.device.type, enabled=False):  # a style is small, and acts often
            style = self.style(noise.flatten(1).to(self.input.input))
        with sdpa_kernel(BACKENDS):
            return self.colours.leave(self.draw(style))

    def draw(self, style: Tensor) -> Tensor:
        """Images of styles `(M, z)`, in normalised colours."""
        x: Tensor = self.input(len(style))
        rgb: Tensor | None = None
        for layer, to_rgb in zip(self.layers, self.to_rgbs, strict=True):
            x = layer(x, style, self.hidden if layer is self.layers[-2] else None)
            rgb = to_rgb(x, rgb)
        assert rgb is not None  # there are layers
        return rgb


class Constant(nn.Module):
    """The tokens that every image starts from."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.input = nn.Parameter(torch.randn(1, features, LOWEST, LOWEST))

    def forward(self, count: int) -> Tensor:
        """`(count, 4, 4, C)`."""
        return self.input.permute(0, 2, 3, 1).expand(count, -1, -1, -1)


class Layer(nn.Module):
    """The blocks of one resolution, and the way to the next.

    Args:
        side: height and width.
        features: features of a token.
        above: features at the next resolution; None if there is none.
        z: length of a style.
    """

    def __init__(self, side: int, features: int, above: int | None, z: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(side, features, z) for _ in range(2))
        self.upsample = None if above is None else Upsample(2 * side, features, above)

    def forward(self, x: Tensor, style: Tensor, hidden: nn.Module | None) -> Tensor:
        """From `(M, side, side, features)` to `(M, 2 side, 2 side, above)`.

        Args:
            x: tokens.
            style: styles `(M, z)`.
            hidden: passes on the tokens before they are upsampled.
        """
        for block in self.blocks:
            x = block(x, style)
        if hidden is not None:
            x = hidden(x)
        return x if self.upsample is None else self.upsample(x)


class Block(nn.Module):
    """Double attention, then a network of two layers for each token; both are added."""

    def __init__(self, side: int, features: int, z: int) -> None:
        super().__init__()
        window, heads = min(WINDOW, side), heads_of(features) // 2
        shifts = (0, window // 2 if side > window else 0)
        self.norm1 = StyleNorm(features, z)
        self.qkv = nn.Linear(features, 3 * features)
        self.proj = nn.Linear(features, features)
        self.attn = nn.ModuleList(WindowAttention(side, window, shift, heads) for shift in shifts)
        self.norm2 = StyleNorm(features, z)
        self.mlp = TwoLayers(features)

    def forward(self, x: Tensor, style: Tensor) -> Tensor:
        """From tokens `(M, H, W, C)` to the same."""
        qkv = self.qkv(self.norm1(x, style)).unflatten(-1, (3, 2, -1))
        seen = [attend(qkv.select(-2, half)) for half, attend in enumerate(self.attn)]
        x = x + self.proj(torch.cat(seen, -1))
        out: Tensor = x + self.mlp(self.norm2(x, style))
        return out


class TwoLayers(nn.Module):
    """Two linear layers with a GELU between them."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(features, 4 * features)
        self.fc2 = nn.Linear(4 * features, features)

    def forward(self, x: Tensor) -> Tensor:
        """From tokens `(M, H, W, C)` to the same."""
        out: Tensor = self.fc2(nn.functional.gelu(self.fc1(x)))
        return out


class Upsample(nn.Module):
    """Twice the side: interpolation, other features, and the positions as sines.

    Args:
        side: height and width of the result.
        features: features of a token before.
        above: features of a token after.
    """

    positions: Tensor

    def __init__(self, side: int, features: int, above: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(features)
        self.reduction = nn.Linear(features, above, bias=False)
        self.alpha = nn.Parameter(torch.zeros(1))
        self.register_buffer("positions", sines(side, above), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """From `(M, side / 2, side / 2, features)` to `(M, side, side, above)`."""
        larger = interpolate(x.permute(0, 3, 1, 2), scale_factor=2.0, mode="bilinear")
        out: Tensor = self.reduction(self.norm(larger.permute(0, 2, 3, 1)))
        return out + self.alpha * self.positions


def sines(side: int, features: int) -> Tensor:
    """Encoded positions `(side, side, features)`: half of the features for x, half for y.

    Each half is [sin, ..., cos, ...] of the position, counted from 1, times frequencies that fall
    from 1 to 1e-4.
    """
    count = features // 4
    rates = torch.exp(-math.log(10_000) * torch.arange(count) / max(count - 1, 1))
    angles = torch.arange(1, side + 1).unsqueeze(1) * rates
    line = torch.cat((angles.sin(), angles.cos()), 1)
    across = line.expand(side, side, -1)
    return torch.cat((across, across.transpose(0, 1)), 2)


class ToRgb(nn.Module):
    """Adds the colours of a resolution to those of the one below.

    Args:
        features: features of a token.
    """

    def __init__(self, features: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(features, 3, 1)
        self.bias = nn.Parameter(torch.zeros(1, 3, 1, 1))
        self.upsample = Double()

    def forward(self, x: Tensor, below: Tensor | None) -> Tensor:
        """`(M, 3, H, W)` from tokens `(M, H, W, C)` and the image so far."""
        with torch.autocast(x.device.type, enabled=False):  # half precision shows in the image
            rgb: Tensor = self.conv(x.permute(0, 3, 1, 2).to(self.bias)) + self.bias
            if below is not None:
                rgb = rgb + (below if below.shape == rgb.shape else self.upsample(below))
        return rgb


def initialise(module: nn.Module) -> None:
    """The published initial weights of linear layers and convolutions."""
    if isinstance(module, nn.Linear):
        nn.init.trunc_normal_(module.weight, std=0.02)
    elif isinstance(module, nn.Conv2d):
        nn.init.xavier_normal_(module.weight, gain=0.02)
    if isinstance(module, nn.Linear | nn.Conv2d) and module.bias is not None:
        nn.init.zeros_(module.bias)
