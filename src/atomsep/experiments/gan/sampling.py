"""Samples of a generator: in training, and of a finished run.

The generator is in training mode whenever it draws a sample, which is normalised by the statistics
of its batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call

from atomsep.experiments.classification import untouched_statistics
from atomsep.experiments.errors import ExperimentError
from atomsep.experiments.gan.pictures import as_bytes
from atomsep.experiments.latent import read_importance
from atomsep.experiments.machine import place_for
from atomsep.experiments.randomness import generator as stream
from atomsep.experiments.trained import Saved, TrainedRun

if TYPE_CHECKING:
    from lightning.fabric import Fabric

    from atomsep.methods import Binding


@torch.no_grad()
def generate(
    fabric: Fabric,
    generator: nn.Module,
    noise: Tensor,
    weights: Mapping[str, Tensor] | None = None,
) -> Tensor:
    """Images of a batch of noise, as bytes; leaves the generator and its mode as they are.

    Args:
        fabric: device and precision.
        generator: from noise to images.
        noise: `(M, z, 1, 1)`.
        weights: parameters and buffers to use in place of the generator's own.
    """
    noise = noise.to(next(generator.parameters()))
    with fabric.autocast(), _training(generator), untouched_statistics(generator):
        return as_bytes(functional_call(generator, dict(weights or {}), (noise,)))


@contextmanager
def _training(model: nn.Module) -> Iterator[None]:
    """A block in which a model is in training mode, whatever mode it is in."""
    modes = {module: module.training for module in model.modules()}
    model.train()
    try:
        yield
    finally:
        for module, mode in modes.items():
            module.training = mode


def draw_noise(count: int, length: int, seed: int, purpose: str) -> Tensor:
    """Noise `(count, length, 1, 1)` that depends on the seed and its purpose alone."""
    return torch.randn(count, length, 1, 1, generator=stream(seed, purpose))


def whole_batches(count: int, batch: int) -> int:
    """The number of samples in all batches that `count` samples need.

    Batches are whole, because a sample depends on the statistics of its batch.

    Example:
        >>> whole_batches(65, 64)
        128
    """
    return -(-count // batch) * batch


def gather(batches: Iterable[Tensor], count: int, device: torch.device) -> Tensor:
    """The first images of batches as one tensor, without a second copy of them in memory.

    It is on the device, or on the host if it would take much of the device's free memory.

    Args:
        batches: images on the device, at least `count` together.
        count: number of images.
        device: the device.

    Example:
        >>> gather([torch.zeros(2, 3), torch.ones(2, 3)], 3, torch.device("cpu")).mean(1)
        tensor([0., 0., 1.])
    """
    images, done = None, 0
    for batch in batches:
        if images is None:
            place = place_for(count * batch[0].nbytes, "auto", device)
            home = device if place == "device" else torch.device("cpu")
            images = batch.new_empty(count, *batch.shape[1:], device=home)
        part = batch[: count - done]
        images[done : done + len(part)] = part
        done += len(part)
    assert images is not None  # of a batch at least
    assert done == count
    return images


class Generated(NamedTuple):
    """Images of a generator.

    Attributes:
        images: bytes, `(n, C, 64, 64)`.
        importance: charge per token, `(n, h, w)`; with several layers, a dictionary by name; None
            if the method does not measure it.
    """

    images: Tensor
    importance: Any


class TrainedGan(TrainedRun):
    """A finished run of a GAN.

    Attributes:
        model: the generator, with the run's method on it.
        discriminator: from images in [-1, 1] to the logits that they are real.
        averaged: a generator with the moving average of the weights; None if the run has none.
    """

    def __init__(
        self,
        saved: Saved,
        generator: nn.Module,
        discriminator: nn.Module,
        averaged: nn.Module | None,
        binding: Binding | None,
    ) -> None:
        super().__init__(saved, generator, binding)
        self.discriminator, self.averaged = discriminator, averaged

    def sample(self, count: int, *, seed: int | None = None, averaged: bool = False) -> Generated:
        """Generated images with their token importance.

        Args:
            count: number of images.
            seed: seed of the noise; by default the run's own, which gives the images that its
                metrics were computed over, if there are as many.
            averaged: whether to use the moving average of the generator's weights.

        Raises:
            ExperimentError: the run has no moving average.
            ValueError: `count` is less than 1.
        """
        if count < 1:
            raise ValueError(f"count must be at least 1, not {count}")
        weights = None
        if averaged:
            if self.averaged is None:
                raise ExperimentError(f"{self.folder} has no moving average: it has ema=0")
            weights = self.averaged.state_dict()
        batch, seed = self.settings.batch, self.seed if seed is None else seed
        noise = draw_noise(whole_batches(count, batch), self.settings.z, seed, "samples")
        images, charges = [], []
        for part in noise.split(batch):
            images.append(generate(self.fabric, self.model, part, weights).cpu())
            charges.append(read_importance(self.binding))
        return Generated(torch.cat(images)[:count], _joined(charges, count))


def _joined(charges: list[Any], count: int) -> Any:
    if charges[0] is None:
        return None
    if isinstance(charges[0], dict):
        return {name: _joined([each[name] for each in charges], count) for name in charges[0]}
    return torch.cat([each.cpu() for each in charges])[:count]
