"""Maps to compare charges with: Captum's, a random order, and the centre of the image.

Captum is imported where it is used; `pip install 'atomsep[faithful]'`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.util import find_spec

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate

from atomsep.importance.faithful import block_sums

POINTS = 32
"""Points on the way of integrated gradients."""


def has_captum() -> bool:
    """Whether Captum is installed."""
    return find_spec("captum") is not None


def random_map(count: int, grid: tuple[int, int], generator: torch.Generator) -> Tensor:
    """A random order of the tokens, another for every image, `(M, h, w)`."""
    return torch.rand(count, *grid, generator=generator)


def centre_map(count: int, grid: tuple[int, int]) -> Tensor:
    """The naive guess: the nearer to the centre of the image, the more important, `(M, h, w)`.

    Example:
        >>> centre_map(1, (1, 3))
        tensor([[[-0.6667, -0.0000, -0.6667]]])
    """
    rows, columns = ((torch.arange(n) + 0.5) * 2 / n - 1 for n in grid)
    return -torch.hypot(rows[:, None], columns).expand(count, *grid)


def captum_maps(
    model: nn.Module,
    logits: Callable[[Tensor], Tensor],
    images: Tensor,
    blank: Tensor,
    labels: Tensor,
    layers: Mapping[str, nn.Module],
    grid: tuple[int, int],
) -> dict[str, Tensor]:
    """Captum's maps of the logits of some classes, by name, `(M, h, w)` each.

    Args:
        model: the model, in eval mode.
        logits: from images to its logits.
        images: `(M, C, H, W)`.
        blank: where the way of integrated gradients starts, like the images.
        labels: the class to explain, `(M,)`.
        layers: layers for Grad-CAM by the names of their maps; their outputs are `(M, C, h', w')`.
        grid: h and w. Maps of pixels are averaged over each token's block; Grad-CAM's are
            interpolated, as Captum advises.
    """
    from captum.attr import InputXGradient, IntegratedGradients, LayerGradCam

    size = block_sums(torch.ones_like(images[:, 0]), grid)

    def averaged(pixels: Tensor) -> Tensor:
        return block_sums(pixels.detach().sum(1), grid).to(images) / size

    # Captum warns about inputs that do not ask for gradients.
    inputs = images.detach().clone().requires_grad_()
    gradient = InputXGradient(logits).attribute(inputs, target=labels)
    integrated = IntegratedGradients(logits).attribute(
        inputs, blank, target=labels, n_steps=POINTS, internal_batch_size=len(images)
    )
    maps = {"gradient x input": averaged(gradient), "integrated gradients": averaged(integrated)}
    for name, layer in layers.items():
        found = LayerGradCam(logits, layer).attribute(inputs, target=labels, relu_attributions=True)
        maps[name] = interpolate(found.detach(), grid, mode="bilinear")[:, 0]
    model.zero_grad(set_to_none=True)
    return maps


def layers_with_maps(model: nn.Module, run: Callable[[], object]) -> list[str]:
    """Names of the modules whose output is `(M, C, h, w)` with several positions, as they run.

    Args:
        model: the model.
        run: runs it once.

    Example:
        >>> model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1))
        >>> layers_with_maps(model, lambda: model(torch.zeros(1, 3, 8, 8)))
        ['0', '1']
    """
    found: list[str] = []

    def note(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, inputs: object, output: object) -> None:
            if isinstance(output, Tensor) and output.ndim == 4 and output[0, 0].numel() > 1:
                found.append(name)

        return hook

    handles = [module.register_forward_hook(note(name)) for name, module in model.named_modules()]
    try:
        with torch.no_grad():
            run()
    finally:
        for handle in handles:
            handle.remove()
    return found
