"""The paper's DCGANs: trained as in PyTorch's example, with a method on the generator.

The method acts on the generator's last hidden layer before its activation, and its loss is added
to the generator's. The discriminator's step does not involve it.

Two unusual choices of the example are kept: the networks are never set to eval mode, so samples
are normalised by the statistics of their batch; and both networks use the same fakes in a step.
The sigmoid is part of the loss here. That makes no difference until it saturates, where the
example's gradient vanishes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from atomsep.experiments.gan.dcgan import LAST_HIDDEN
from atomsep.experiments.gan.fidelity import NEIGHBOURS, Fidelity
from atomsep.experiments.gan.grids import write_importance, write_samples
from atomsep.experiments.gan.pictures import Pictures, as_bytes, normalise
from atomsep.experiments.latent import MethodOnLayer
from atomsep.experiments.loading import epoch_batches
from atomsep.experiments.randomness import generator as stream
from atomsep.experiments.settings import Settings, setting
from atomsep.experiments.task import Context, Task

BETAS = (0.5, 0.999)
"""Betas of Adam."""

SHOWN = 64
"""Samples in a picture."""


@dataclass(frozen=True)
class GanSettings(Settings):
    """Settings of the GANs."""

    epochs: int = setting(25, "passes over the training images", low=1)
    average_last: int = setting(6, "epochs at the end whose metrics' mean is the result", low=1)
    learning_rate: float = setting(2e-4, "of both networks' Adam", low=0)
    layer: str = setting(LAST_HIDDEN, "the generator's layer that the method acts on")
    width: int = setting(64, "features of the generator's last hidden layer", low=1)
    z: int = setting(100, "length of the noise", low=1)
    train_samples: int = setting(0, "training images, drawn from all; 0: all", low=0)
    samples: int = setting(
        10_000, "generated images that metrics are computed over", low=NEIGHBOURS + 1
    )
    features: str = setting(
        "inception", "of the Fréchet distance: inception, classifier or package.module:function"
    )
    features_weights: str = setting("", "file of Inception's weights; torch's cache if not set")


@dataclass(frozen=True)
class OwnGanSettings(GanSettings):
    """Settings of a GAN on a folder of images."""

    folder: str = setting("", "of the images; subfolders are classes")
    channels: int = setting(3, "1 for grey images, 3 for coloured ones", low=1)
    unreadable: str = setting("stop", "at an image that cannot be read", choices=("stop", "skip"))


class Gan(Task):
    """Generator and discriminator in training.

    Args:
        context: settings, method, seed, device.
        generator: from noise to images.
        discriminator: from images to logits.
        training: the images.
        fidelity: compares samples with real images.
    """

    beside = "generator"

    def __init__(
        self,
        context: Context,
        generator: nn.Module,
        discriminator: nn.Module,
        training: Pictures,
        fidelity: Fidelity,
    ) -> None:
        super().__init__()
        settings, self.fabric = context.settings, context.fabric
        self.settings, self.seed, self.shard = settings, context.seed, context.shard
        self.fidelity, self.folder = fidelity, context.folder
        # On the device, a step waits for nothing from the host.
        self.images = training.images.to(self.fabric.device)
        self.unreadable.update(training.unreadable)
        self.steps = len(self._epoch(0))
        self.on_layer = MethodOnLayer(
            generator,
            context.method,
            layer=settings.layer,
            layout=settings.layout,
            weight=settings.weight,
            features=settings.width,
            seed=context.seed,
            options=settings.method,
        )
        optimisers = [
            torch.optim.Adam(model.parameters(), lr=settings.learning_rate, betas=BETAS)
            for model in (generator, discriminator)
        ]
        self.on_layer.join(optimisers[0], self.fabric.device)
        self.inner = generator
        self.generator, self.generator_optimiser = self.fabric.setup(generator, optimisers[0])
        self.discriminator, self.discriminator_optimiser = self.fabric.setup(
            discriminator, optimisers[1]
        )

    def _epoch(self, epoch: int) -> list[Tensor]:
        return epoch_batches(len(self.images), self.settings.batch, self.seed, epoch, self.shard)

    def batches(self, epoch: int, start: int) -> Iterable[Tensor]:
        """Images as bytes, `(M, channels, 64, 64)`."""
        indices = [part.to(self.images.device) for part in self._epoch(epoch)[start:]]
        return (self.images[part] for part in indices)

    def step(self, batch: Tensor, progress: float) -> Mapping[str, Tensor]:
        """A step of the discriminator, then one of the generator with the same fakes."""
        real = normalise(batch)
        # Every process draws the noise of all and takes its own, so that no two are the same.
        rank, world = self.shard.rank, self.shard.world
        shape = (len(real) * world, self.settings.z, 1, 1)
        noise = torch.randn(shape, device=real.device)[rank::world]

        self.discriminator_optimiser.zero_grad()
        real_loss = _judged(self.discriminator(real), 1.0)
        self.fabric.backward(real_loss)
        fake = self.generator(noise)
        fake_loss = _judged(self.discriminator(fake.detach()), 0.0)
        self.fabric.backward(fake_loss)
        self.discriminator_optimiser.step()

        self.generator_optimiser.zero_grad()
        generator_loss = _judged(self.discriminator(fake), 1.0)
        method_loss = self.on_layer.loss(None)
        whole = generator_loss if method_loss is None else generator_loss + method_loss
        self.fabric.backward(whole)
        self.on_layer.average_gradients(self.fabric)
        self.generator_optimiser.step()

        parts = {"discriminator": real_loss + fake_loss, "generator": generator_loss}
        if method_loss is not None:
            parts["method"] = method_loss
        return {name: part.detach() for name, part in parts.items()}

    def evaluate(self) -> dict[str, float]:
        """Fréchet distance, precision and recall of as many samples as are set."""
        batch, count = self.settings.batch, self.settings.samples
        draws = stream(self.seed, "samples")
        # Whole batches, since a sample depends on its batch's statistics; then what was asked for.
        noise = (self._noise(batch, draws) for _ in range(-(-count // batch)))
        samples = torch.cat([self.sample(part) for part in noise])[:count]
        return {name: round(x, 7) for name, x in self.fidelity.compare(samples).items()}

    @torch.no_grad()
    def sample(self, noise: Tensor) -> Tensor:
        """Images of a batch of noise, as bytes."""
        dtype = next(self.inner.parameters()).dtype
        with self.fabric.autocast():
            return as_bytes(self.inner(noise.to(self.fabric.device, dtype)))

    def _noise(self, count: int, draws: torch.Generator) -> Tensor:
        return torch.randn(count, self.settings.z, 1, 1, generator=draws)

    def parts(self) -> dict[str, Any]:
        """Both networks, their optimisers, the method."""
        return {
            "generator": self.generator,
            "discriminator": self.discriminator,
            "generator_optimiser": self.generator_optimiser,
            "discriminator_optimiser": self.discriminator_optimiser,
            "method": self.on_layer,
        }

    def finish(self) -> list[Path]:
        """A grid of samples, and their token importance if the method measures it."""
        if self.folder is None:
            return []
        files = [self.folder / "samples.png"]
        images = self.sample(self._noise(SHOWN, stream(self.seed, "picture")))
        write_samples(files[0], images)
        binding = self.on_layer.binding
        importance = None if binding is None else binding.importance
        if importance is not None:
            files.append(self.folder / "importance.png")
            write_importance(files[1], images.cpu(), importance.cpu())
        return files


def _judged(logits: Tensor, label: float) -> Tensor:
    return binary_cross_entropy_with_logits(logits, torch.full_like(logits, label))
