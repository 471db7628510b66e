"""The space of colours in which the networks compute.

The published networks were trained on images normalised by ImageNet's mean and deviation. Images
outside the networks lie in [-1, 1], as for all GANs here.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""Mean and deviation of ImageNet's colours in [0, 1]."""


class Colours(nn.Module):
    """From [-1, 1] to normalised colours and back."""

    scale: Tensor
    shift: Tensor

    def __init__(self) -> None:
        super().__init__()
        mean, deviation = (torch.tensor(each).reshape(3, 1, 1) for each in (MEAN, DEVIATION))
        self.register_buffer("scale", 2 * deviation, persistent=False)
        self.register_buffer("shift", 2 * mean - 1, persistent=False)

    def enter(self, images: Tensor) -> Tensor:
        """Normalised colours of images in [-1, 1], `(M, 3, H, W)`."""
        return (images - self.shift) / self.scale

    def leave(self, images: Tensor) -> Tensor:
        """Images in [-1, 1] from normalised colours."""
        return images * self.scale + self.shift
