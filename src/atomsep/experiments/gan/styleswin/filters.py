"""Haar's wavelet and the resampling filter [1, 3, 3, 1], for images `(M, C, H, W)`."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d, conv_transpose2d


def haar(images: Tensor) -> Tensor:
    """The wavelet's coefficients, `(M, 4 C, H / 2, W / 2)`.

    For blocks [[a, b], [c, d]]: first all channels' averages (a + b + c + d) / 2, then the
    differences of rows, of columns, and across.

    Example:
        >>> haar(torch.tensor([[[[4.0, 2.0], [1.0, 1.0]]]])).flatten()
        tensor([4., 2., 1., 1.])
    """
    a, b, c, d = (images[..., row::2, column::2] for row in (0, 1) for column in (0, 1))
    above, below, falling, rising = a + b, c + d, a - b, c - d
    parts = (above + below, above - below, falling + rising, falling - rising)
    return torch.cat(parts, 1) / 2


def inverse_haar(coefficients: Tensor) -> Tensor:
    """The images that coefficients were computed from.

    Example:
        >>> images = torch.arange(32.0).reshape(1, 2, 4, 4)
        >>> torch.equal(inverse_haar(haar(images)), images)
        True
    """
    average, rows, columns, across = coefficients.chunk(4, 1)
    above, below = average + rows, average - rows
    falling, rising = columns + across, columns - across
    first = torch.stack((above + falling, above - falling), -1).flatten(-2)
    second = torch.stack((below + rising, below - rising), -1).flatten(-2)
    return torch.stack((first, second), -2).flatten(-3, -2) / 2


class Filter(nn.Module):
    """Smooths each channel with [1, 3, 3, 1] / 8, in rows and columns.

    Args:
        padding: zeros on every side.
        stride: 2 leaves out every other pixel.

    Example:
        >>> Filter(padding=1, stride=2)(torch.ones(1, 1, 8, 8))[0, 0, 1]
        tensor([0.8750, 1.0000, 1.0000, 0.8750])
    """

    kernel: Tensor

    def __init__(self, padding: int, stride: int = 1) -> None:
        super().__init__()
        self.padding, self.stride = padding, stride
        line = torch.tensor([1.0, 3.0, 3.0, 1.0]) / 8
        kernel = (line.unsqueeze(1) * line).reshape(1, 1, 4, 4)
        self.register_buffer("kernel", kernel, persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        """Smooth images of `(M, C, H, W)`."""
        channels = images.shape[1]
        kernel = self.kernel.to(images.dtype).expand(channels, -1, -1, -1)
        return conv2d(images, kernel, None, self.stride, self.padding, groups=channels)


class Double(Filter):
    """Smooth images of twice the side.

    Example:
        >>> Double()(torch.ones(1, 1, 3, 3)).shape
        torch.Size([1, 1, 6, 6])
    """

    def __init__(self) -> None:
        super().__init__(padding=1, stride=2)

    def forward(self, images: Tensor) -> Tensor:
        """From `(M, C, H, W)` to `(M, C, 2 H, 2 W)`."""
        channels = images.shape[1]
        kernel = 4 * self.kernel.to(images.dtype).expand(channels, -1, -1, -1)
        return conv_transpose2d(images, kernel, None, self.stride, self.padding, groups=channels)
