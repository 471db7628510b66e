"""The DCGAN of PyTorch's examples, for images of 64 px.

The discriminator returns logits: the example's sigmoid is part of the loss here (see
`adversarial`). All weights have the example's names.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn

from atomsep.experiments.gan.convolution import FirstPass, convolve

SIDE = 64
"""Height and width of the images."""


class Generator(nn.Module):
    """From noise `(M, z, 1, 1)` to images `(M, channels, 64, 64)` in [-1, 1].

    Args:
        channels: 1 for grey images, 3 for colour.
        width: features of the last hidden layer; the layers before it have 2, 4 and 8 times as
            many.
        z: length of the noise.

    Example:
        >>> import torch
        >>> Generator(channels=1, width=4)(torch.randn(2, 100, 1, 1)).shape
        torch.Size([2, 1, 64, 64])
    """

    def __init__(self, channels: int, width: int = 64, z: int = 100) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.ConvTranspose2d(z, 8 * width, 4, 1, 0, bias=False)]
        widths = (8 * width, 4 * width, 2 * width, width, channels)
        for before, after in pairwise(widths):
            larger = nn.ConvTranspose2d(before, after, 4, 2, 1, bias=False)
            layers += [nn.BatchNorm2d(before), nn.ReLU(inplace=True), larger]
        self.main = nn.Sequential(*layers, nn.Tanh())
        self.apply(initialise)

    def forward(self, noise: Tensor) -> Tensor:
        """Images of a batch of noise."""
        images: Tensor = self.main(noise)
        return images


class Discriminator(nn.Module):
    """From images `(M, channels, 64, 64)` to the logits that they are real, `(M,)`.

    Args:
        channels: 1 for grey images, 3 for colour.
        width: features of the first hidden layer; those after it have 2, 4 and 8 times as many.

    Example:
        >>> import torch
        >>> Discriminator(channels=1, width=4)(torch.randn(2, 1, 64, 64)).shape
        torch.Size([2])
    """

    def __init__(self, channels: int, width: int = 64) -> None:
        super().__init__()
        layers: list[nn.Module] = [
            nn.Conv2d(channels, width, 4, 2, 1, bias=False),
            nn.LeakyReLU(0.2, inplace=True),
        ]
        for before, after in pairwise((width, 2 * width, 4 * width, 8 * width)):
            smaller = nn.Conv2d(before, after, 4, 2, 1, bias=False)
            layers += [smaller, nn.BatchNorm2d(after), nn.LeakyReLU(0.2, inplace=True)]
        self.main = nn.Sequential(*layers, nn.Conv2d(8 * width, 1, 4, 1, 0, bias=False))
        self.apply(initialise)

    def forward(self, images: Tensor) -> Tensor:
        """Logits of a batch of images."""
        logits: Tensor = self.main(images)
        return logits.flatten()

    def with_gradient(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Logits, and the gradient of their sum by the images, which can be differentiated again.

        The logit of an image depends on the others through the batch's statistics; its gradient
        has that part too.
        """
        images, first = images.detach().requires_grad_(), FirstPass()
        output = images
        for layer in self.main:
            if isinstance(layer, nn.Conv2d):
                output = convolve(layer, output, first)
            else:
                output = layer(output)
        logits = output.flatten()
        with torch.autocast(images.device.type, enabled=False):  # it is for forward passes alone
            [gradient] = torch.autograd.grad(logits.sum(), images, create_graph=True)
        first.active = False
        return logits, gradient


def initialise(module: nn.Module) -> None:
    """The example's initial weights: convolutions N(0, 0.02); norms N(1, 0.02), and 0 as bias."""
    if isinstance(module, nn.Conv2d | nn.ConvTranspose2d):
        nn.init.normal_(module.weight, 0.0, 0.02)
    elif isinstance(module, nn.BatchNorm2d):
        nn.init.normal_(module.weight, 1.0, 0.02)
        nn.init.zeros_(module.bias)
