"""Mode seeking: let a generator's images differ as much as the noise that they come from."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from atomsep.checks import in_backward
from atomsep.functional import widen
from atomsep.hooks.arguments import check_weight
from atomsep.hooks.targets import Target
from atomsep.methods.base import Method
from atomsep.methods.binding import Binding

EPS = 1e-5
"""Added to the ratio of the distances, as in the released code."""


class ModeSeeking(Method):
    r"""Regulariser of Mao et al., "Mode Seeking Generative Adversarial Networks for Diverse Image
    Synthesis", CVPR 2019 (MSGAN), as in the released code.

    $$\mathcal L = \left(\frac{\operatorname{mean} |G(z_1) - G(z_2)|}
      {\operatorname{mean} |z_1 - z_2|} + 10^{-5}\right)^{-1}$$

    where $z_1$ is the first half of a batch of noise and $z_2$ the second half; an odd batch leaves
    its last sample out. It acts on the images and not on a layer, so it has no loss of a latent:
    `bind` it to a generator, or call `compare`.

    Example:
        >>> generator = nn.Linear(2, 3)
        >>> binding = ModeSeeking().bind(generator, weight=1.0)
        >>> images = generator(torch.randn(4, 2))
        >>> (images.square().mean() + binding.loss()).backward()
        >>> binding.detach()
    """

    def __init__(self) -> None:
        super().__init__()

    @staticmethod
    def compare(noise: Tensor, images: Tensor) -> Tensor:
        """The unweighted loss of a batch of noise and its images, a scalar, float32 at least.

        Fewer than two samples have no pair: their loss is 0.

        Args:
            noise: the generator's input, `(M, ...)`.
            images: its output, `(M, ...)`.

        Example:
            >>> print(f"{ModeSeeking.compare(torch.eye(2), 2 * torch.eye(2)):.4f}")
            0.5000
        """
        half = len(images) // 2
        if not half:
            return 0 * widen(images).sum()
        between_noise, between_images = (
            (widen(batch[:half]) - widen(batch[half : 2 * half])).abs().mean()
            for batch in (noise, images)
        )
        # The reciprocal as one quotient: equal noise gives 0 and not 0 / 0.
        return between_noise / (between_images + EPS * between_noise).clamp(
            min=torch.finfo(between_images.dtype).tiny
        )

    def loss(
        self, latent: Tensor, labels: Tensor | None, mask: Tensor | None, second: Tensor | None
    ) -> Tensor:
        """Refused: there is no loss of a latent.

        Raises:
            ValueError: always.
        """
        raise ValueError(
            "ModeSeeking compares generated images with their noise and has no loss of a latent: "
            "bind it to the generator, or call ModeSeeking.compare(noise, images)"
        )

    def bind(
        self, model: nn.Module, layer: Target = "", *, weight: float = 1.0, **how: Any
    ) -> GeneratorBinding:
        """Hook a whole generator; the layer and how to read it do not matter.

        Args:
            model: the generator; its first argument is the noise, its output the images.
            layer: ignored, like all other arguments of
                [`Method.bind`][atomsep.methods.Method.bind].
            weight: factor of the loss.
            **how: ignored.

        Raises:
            ValueError: the weight is negative or not finite.
            TypeError: the weight is not a number.
        """
        return GeneratorBinding(self, model, check_weight(weight))


class GeneratorBinding(Binding):
    """A hook on a generator that keeps noise and images of the last training forward."""

    def __init__(self, method: ModeSeeking, generator: nn.Module, weight: float) -> None:
        self.method, self.weight = method, weight
        self.held: tuple[Tensor, Tensor] | None = None
        self.handle = generator.register_forward_hook(self._hook)

    def _hook(self, generator: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        if generator.training and torch.is_grad_enabled() and not in_backward():
            noise = args[0] if args else None
            if not (isinstance(noise, Tensor) and isinstance(output, Tensor)):
                raise TypeError(
                    f"mode seeking needs a generator that takes the noise as its first positional "
                    f"argument and returns images, both tensors, but {type(generator).__name__} "
                    f"took {type(noise).__name__} and returned {type(output).__name__}"
                )
            self.held = noise, output

    def loss(self, labels: Tensor | None = None, again: Callable[[], Any] | None = None) -> Tensor:
        """The weighted loss of the last training forward, which needs no labels."""
        if self.held is None:
            raise RuntimeError(
                "the generator has not run in training mode since the last loss; run it first, "
                "with gradients enabled"
            )
        held, self.held = self.held, None
        with torch.autocast(held[1].device.type, enabled=False):
            return self.weight * self.method.compare(*held)

    def detach(self) -> None:
        """Take the hook off the generator, and drop what is held of the last forward."""
        self.handle.remove()
        self.held = None
