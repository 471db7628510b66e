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
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from atomsep.experiments.gan.fidelity import Fidelity
from atomsep.experiments.gan.grids import write_importance, write_samples
from atomsep.experiments.gan.pictures import Pictures, as_bytes, normalise
from atomsep.experiments.latent import MethodOnLayer
from atomsep.experiments.loading import epoch_batches
from atomsep.experiments.randomness import generator as stream
from atomsep.experiments.task import Context, Task

BETAS = (0.5, 0.999)
"""Betas of Adam."""

SHOWN = 64
"""Samples in a picture."""


class Gan(Task):
    """Generator and discriminator in training.

    Args:
        context: settings, method, seed, device.
        generator: from noise to images.
        discriminator: from images to logits.
        training: the images.
        fidelity: compares generated images with real ones.
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
        # On the device, so that a step does not wait for the host.
        self.images = training.images.to(self.fabric.device)
        self.unreadable.update(training.unreadable)
        self.steps = len(self._epoch(0))
        optimisers = [
            torch.optim.Adam(model.parameters(), lr=settings.learning_rate, betas=BETAS)
            for model in (generator, discriminator)
        ]
        self.on_layer = MethodOnLayer(context, generator, optimisers[0], settings.width)
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
        # Every process draws the noise of all and takes its own part, so that no two are equal.
        rank, world = self.shard.rank, self.shard.world
        shape = (len(real) * world, self.settings.z, 1, 1)
        noise = torch.randn(shape, device=real.device)[rank::world]

        self.discriminator_optimiser.zero_grad()
        real_loss = _adversarial_loss(self.discriminator(real), 1.0)
        self.fabric.backward(real_loss)
        fake = self.generator(noise)
        fake_loss = _adversarial_loss(self.discriminator(fake.detach()), 0.0)
        self.fabric.backward(fake_loss)
        self.discriminator_optimiser.step()

        self.generator_optimiser.zero_grad()
        generator_loss = _adversarial_loss(self.discriminator(fake), 1.0)
        method = self.on_layer.backward(generator_loss, None)
        self.generator_optimiser.step()

        discriminator_loss = (real_loss + fake_loss).detach()
        return {"discriminator": discriminator_loss, "generator": generator_loss.detach(), **method}

    def evaluate(self) -> dict[str, float]:
        """Fréchet distance, precision and recall of the number of samples that is set."""
        batch, count = self.settings.batch, self.settings.samples
        draws = stream(self.seed, "samples")
        # Whole batches, because a sample depends on its batch's statistics; then as many as set.
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


def _adversarial_loss(logits: Tensor, label: float) -> Tensor:
    return binary_cross_entropy_with_logits(logits, torch.full_like(logits, label))
