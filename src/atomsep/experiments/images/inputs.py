"""Images that a trained classifier is asked about: from anything that is one to its input."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from atomsep.experiments.errors import ExperimentError
from atomsep.experiments.images.augmentation import Augmentation
from atomsep.experiments.images.data import as_rgb, decode
from atomsep.experiments.predicting import Inputs

if TYPE_CHECKING:
    from PIL.Image import Image


class ImageInputs(Inputs):
    """The centre of an image, as images are evaluated.

    Args:
        size: width and height of the model's input.
        mean: what the normalisation subtracts, per channel.
        deviation: what it divides by.

    Attributes:
        transform: from a Pillow image to the model's input, as a Pillow image.
    """

    kind = "images"

    def __init__(self, size: int, mean: Sequence[float], deviation: Sequence[float]) -> None:
        self.mean, self.deviation = list(mean), list(deviation)
        self.transform = Augmentation("none", size).prepare

    def see(self, samples: Any) -> list[Tensor]:
        """Images as bytes, `(3, S, S)`."""
        from torchvision.transforms.functional import pil_to_tensor

        if isinstance(samples, str | Path):
            samples = [samples]
        if isinstance(samples, np.ndarray | Tensor) and samples.ndim != 4:
            raise ValueError(
                f"images must be a list, or an array with four axes, not one of shape "
                f"{tuple(samples.shape)}; for a single image write predict([image])"
            )
        return [pil_to_tensor(self.transform(as_image(sample))) for sample in samples]

    def batches(self, seen: Sequence[Tensor], size: int) -> Iterator[tuple[Sequence[int], Any]]:
        """Normalised images, in order."""
        mean, deviation = (
            torch.tensor(numbers).view(3, 1, 1) for numbers in (self.mean, self.deviation)
        )
        for start in range(0, len(seen), size):
            images = torch.stack(list(seen[start : start + size])).float().mul_(1 / 255)
            yield range(start, start + len(images)), (images - mean).div_(deviation)

    def columns(self, seen: Sequence[Tensor]) -> dict[str, Any]:
        """The images, as bytes."""
        return {"images": torch.stack(list(seen)).numpy()}

    def describe(self) -> dict[str, Any]:
        """The normalisation."""
        return {"normalisation": {"mean": self.mean, "deviation": self.deviation}}


def as_image(sample: Any) -> Image:
    """A path, a Pillow image, an array `(H, W)` or `(H, W, 3)` or a tensor `(C, H, W)`, as RGB.

    Arrays and tensors hold bytes, or numbers in [0, 1].

    Raises:
        ExperimentError: a file cannot be read.
        TypeError: it is none of these.
        ValueError: an array has another shape, type or range.

    Example:
        >>> as_image(torch.zeros(1, 4, 6)).size
        (6, 4)
    """
    from PIL import Image

    if isinstance(sample, str | Path):
        try:
            return decode(sample)
        except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
            said = getattr(error, "strerror", None) or str(error)
            reason = said.replace(f" {str(sample)!r}", "")  # Pillow repeats the name
            raise ExperimentError(f"{sample} cannot be read as an image ({reason})") from error
    if isinstance(sample, Image.Image):
        return as_rgb(sample)
    if isinstance(sample, Tensor):
        pixels = sample.detach().cpu().numpy()
        pixels = np.moveaxis(pixels, 0, -1) if pixels.ndim == 3 else pixels
    elif isinstance(sample, np.ndarray):
        pixels = sample
    else:
        raise TypeError(
            f"an image must be a path, a Pillow image, an array or a tensor, not "
            f"{type(sample).__name__}"
        )
    if pixels.ndim not in (2, 3) or (pixels.ndim == 3 and pixels.shape[2] not in (1, 3)):
        raise ValueError(
            f"an image must have shape (H, W) or (H, W, 3) as an array, and (3, H, W) as a tensor, "
            f"not {tuple(sample.shape)}"
        )
    if pixels.dtype.kind == "f" and pixels.size and pixels.min() >= 0 and pixels.max() <= 1:
        pixels = np.rint(pixels * 255).astype(np.uint8)
    if pixels.dtype != np.uint8:
        raise ValueError(
            f"an image must hold bytes, or numbers in [0, 1], not {pixels.dtype} from "
            f"{pixels.min():g} to {pixels.max():g}; the run normalises it itself"
        )
    return as_rgb(Image.fromarray(pixels.squeeze(2) if pixels.shape[2:] == (1,) else pixels))
