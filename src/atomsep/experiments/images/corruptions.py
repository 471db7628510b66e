"""Corrupted images to test a classifier's robustness on: noise, blur, contrast and JPEG.

Kinds, formulas and severities are those of Hendrycks and Dietterich, "Benchmarking Neural Network
Robustness to Common Corruptions and Perturbations", ICLR 2019: ImageNet-C's for images of more than
64 pixels, CIFAR-10-C's for smaller ones. The corrupted images are rounded to bytes, but not stored
as JPEG files, which ImageNet-C's are. The noise of an image depends on its index and the severity
alone, so every run sees the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from atomsep.experiments.images.jpeg import compress

Severities = dict[str, tuple[float, ...]]

IMAGENET_C: Severities = {
    "noise": (0.08, 0.12, 0.18, 0.26, 0.38),
    "blur": (1, 2, 3, 4, 6),
    "contrast": (0.4, 0.3, 0.2, 0.1, 0.05),
    "jpeg": (25, 18, 15, 10, 7),
}
"""Deviation of the noise and of the blur, factor of the contrast, quality of the JPEG."""

CIFAR_10_C: Severities = {
    "noise": (0.04, 0.06, 0.08, 0.09, 0.10),
    "blur": (0.4, 0.6, 0.7, 0.8, 1),
    "contrast": (0.75, 0.5, 0.4, 0.3, 0.15),
    "jpeg": (80, 65, 58, 50, 40),
}
"""The same for small images."""

SMALL = 64
"""Largest height of a small image, in pixels."""

PART = 1 << 22
"""Numbers that are corrupted at a time; each takes some dozens of bytes."""

Change = Callable[[Tensor, Tensor], Tensor]
"""From normalised images and their indices in the data set to corrupted ones."""


def corruptions(
    mean: tuple[float, ...], deviation: tuple[float, ...]
) -> dict[str, tuple[Change, ...]]:
    """All corruptions of normalised images: by kind, with rising severity.

    Args:
        mean: what the normalisation subtracted, per channel.
        deviation: what it divided by.
    """
    return {
        kind: tuple(
            partial(corrupted, kind=kind, severity=severity, mean=mean, deviation=deviation)
            for severity in range(1, len(strengths) + 1)
        )
        for kind, strengths in IMAGENET_C.items()
    }


def corrupted(
    batch: Tensor,
    indices: Tensor,
    kind: str,
    severity: int,
    mean: tuple[float, ...],
    deviation: tuple[float, ...],
) -> Tensor:
    """Normalised images `(n, 3, S, S)`, corrupted: see `corrupt` and `corruptions`."""
    home, dtype = batch.device, batch.dtype
    if home.type == "mps":  # has no float64
        batch, indices = batch.cpu(), indices.cpu()
    shift, scale = (
        torch.tensor(numbers, device=batch.device).view(-1, 1, 1) for numbers in (mean, deviation)
    )
    changed = corrupt(_as_bytes(batch.float() * scale + shift), indices, kind, severity)
    return ((changed.float() / 255 - shift) / scale).to(home, dtype)


def corrupt(images: Tensor, indices: Tensor, kind: str, severity: int) -> Tensor:
    """Corrupted images.

    Args:
        images: bytes, `(n, 3, S, S)`, on any device.
        indices: their numbers in the data set, `(n,)`, which determine the noise.
        kind: "noise", "blur", "contrast" or "jpeg".
        severity: from 1 to 5.

    Raises:
        ValueError: there is no such kind or severity.

    Example:
        >>> images = torch.tensor([0, 200], dtype=torch.uint8).view(1, 1, 1, 2).expand(1, 3, 2, 2)
        >>> corrupt(images, torch.tensor([0]), "contrast", severity=2)[0, 0, 0]
        tensor([ 50, 150], dtype=torch.uint8)
    """
    if kind not in IMAGENET_C or severity not in range(1, 6):
        raise ValueError(
            f"there is no corruption {kind!r} of severity {severity!r}; the kinds are "
            f"{', '.join(IMAGENET_C)}, the severities 1 to 5"
        )
    strength = (CIFAR_10_C if images.shape[-2] <= SMALL else IMAGENET_C)[kind][severity - 1]
    step = max(1, PART // max(1, images[:1].numel()))
    parts = zip(images.split(step), indices.to(images.device).split(step), strict=True)
    return torch.cat([_corrupt(part, kind, strength, key, severity) for part, key in parts])


def _corrupt(images: Tensor, kind: str, strength: float, keys: Tensor, severity: int) -> Tensor:
    if kind == "jpeg":
        return compress(images, int(strength))
    numbers = images.double() / 255
    if kind == "noise":
        return _as_bytes(numbers + strength * normal_numbers(keys, severity, images[0].shape))
    if kind == "blur":
        rows, columns = (_blurring(size, strength, numbers) for size in images.shape[-2:])
        return _as_bytes(rows @ numbers @ columns.T)
    mean = numbers.mean((-2, -1), keepdim=True)
    return _as_bytes((numbers - mean) * strength + mean)


def _as_bytes(numbers: Tensor) -> Tensor:
    return (numbers * 255).round().clamp(0, 255).to(torch.uint8)


def _blurring(size: int, deviation: float, like: Tensor) -> Tensor:
    """The matrix that blurs a row of `size` pixels with a Gaussian, cut off at 4 deviations.

    Beyond the ends, the last pixels repeat.
    """
    reach = int(4 * deviation + 0.5)
    offset = torch.arange(-reach, reach + 1, device=like.device)
    weights = torch.exp(-0.5 * (offset.to(like.dtype) / deviation).square())
    source = (torch.arange(size, device=like.device).unsqueeze(1) + offset).clamp(0, size - 1)
    shares = (weights / weights.sum()).expand(size, -1)
    return like.new_zeros(size, size).scatter_add_(1, source, shares)


def normal_numbers(keys: Tensor, stream: int, shape: tuple[int, ...]) -> Tensor:
    """Normal numbers `(n, *shape)` that depend on the key, the stream and the place alone.

    A counter is hashed (splitmix64), so that neither the batch nor the device matters, which
    torch's generators do not offer.

    Args:
        keys: whole numbers, `(n,)`.
        stream: numbers of different streams are independent.
        shape: numbers per key.
    """
    place = torch.arange(math.prod(shape), device=keys.device)
    bits = _mix(_mix(_mix(keys.long()) + stream).unsqueeze(1) + place * _ODD)
    # Both halves of 64 bits, as numbers in (0, 1): Box-Muller.
    first, second = (((half & 0xFFFFFFFF).double() + 0.5) / 2**32 for half in (bits >> 32, bits))
    numbers = (-2 * first.log()).sqrt() * torch.cos(2 * math.pi * second)
    return numbers.view(-1, *shape)


def _signed(number: int) -> int:
    """The signed number of the same 64 bits."""
    return number - (1 << 64) if number >> 63 else number


_ODD = _signed(0x9E3779B97F4A7C15)


def _mix(numbers: Tensor) -> Tensor:
    """Splitmix64's step: every bit of the result depends on every bit of the number."""
    numbers = numbers + _ODD
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        numbers = (numbers ^ _shifted(numbers, shift)) * _signed(factor)
    return numbers ^ _shifted(numbers, 31)


def _shifted(numbers: Tensor, bits: int) -> Tensor:
    """Shifted to the right with zeros from the left, which `>>` of signed numbers does not do."""
    return (numbers >> bits) & ((1 << (64 - bits)) - 1)
