"""The training of GANs: as in PyTorch's example, with a method on the generator.

The method acts on the generator's last hidden layer before its activation, and its loss is added
to the generator's. The discriminator's step does not involve it.

Two unusual choices of the example are kept: the networks are never set to eval mode, so samples
are normalised by the statistics of their batch; and both networks use the same fakes in a step.
The sigmoid is part of the loss here. That makes no difference until it saturates, where the
example's gradient vanishes.

Two additions leave the example's training alone unless they are set: a moving average of the
generator's weights (EMA), which is evaluated beside the generator; and R1, the penalty of the
discriminator's gradient at real images (Mescheder et al., 2018).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from atomsep.experiments.atoms_file import Atoms
from atomsep.experiments.distances import SAMPLES, measure_distances
from atomsep.experiments.gan.average import Average
from atomsep.experiments.gan.breakdown import find_breakdown
from atomsep.experiments.gan.experiments import AVERAGED
from atomsep.experiments.gan.fidelity import Fidelity
from atomsep.experiments.gan.grids import write_importance, write_samples
from atomsep.experiments.gan.pictures import Pictures, normalise
from atomsep.experiments.gan.sampling import draw_noise, gather, generate, whole_batches
from atomsep.experiments.gan.stacked import Modes, Stacks
from atomsep.experiments.graphs import replayed
from atomsep.experiments.latent import MethodOnLayer, read_importance
from atomsep.experiments.loading import epoch_batches
from atomsep.experiments.machine import move_if_it_fits
from atomsep.experiments.optimisers import make_optimiser
from atomsep.experiments.predicting import first_layer
from atomsep.experiments.prefetching import sent
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
        discriminator: from images to logits, with a method `with_gradient` for R1.
        training: the images.
        judge: measures how good generated images are.

    Attributes:
        shown: number of samples in a picture.
    """

    on_layer: MethodOnLayer
    training: Pictures | Stacks
    shown = SHOWN

    def __init__(
        self,
        context: Context,
        generator: nn.Module,
        discriminator: nn.Module,
        training: Pictures | Stacks,
        judge: Fidelity | Modes,
    ) -> None:
        super().__init__()
        settings, self.fabric = context.settings, context.fabric
        self.settings, self.seed, self.shard = settings, context.seed, context.shard
        self.judge, self.folder = judge, context.folder
        # On the device if they fit, so that a step does not wait for the host.
        self.training, place = move_if_it_fits(
            training.to, training.nbytes, context.data_on, self.fabric.device
        )
        self.home = self.fabric.device if place == "device" else torch.device("cpu")
        self.unreadable.update(training.unreadable)
        self.steps = len(self._epoch(0))
        for model in (generator, discriminator):
            model.to(memory_format=self._memory_format())
        self.average = Average(generator, settings.ema) if settings.ema else None
        optimisers = self.make_optimisers(context, generator, discriminator)
        self.on_layer = MethodOnLayer(context, generator, optimisers[0], settings.hidden)
        self.inner, self.critic = generator, discriminator
        self.generator, self.generator_optimiser = self.fabric.setup(generator, optimisers[0])
        self.discriminator, self.discriminator_optimiser = self.fabric.setup(
            discriminator, optimisers[1]
        )
        self.discriminator.mark_forward_method("with_gradient")
        if self.average is not None:
            self.average.to(next(generator.parameters()))
        if settings.compile:
            generator.compile()
            if not settings.r1:  # whose gradient of a gradient torch.compile cannot trace
                discriminator.compile()
        self.execute = replayed(self.compute, context, self.on_layer)

    def make_optimisers(
        self, context: Context, *networks: nn.Module
    ) -> Sequence[torch.optim.Optimizer]:
        """The optimisers of generator and discriminator."""
        return [
            make_optimiser(torch.optim.Adam, network.parameters(), context, betas=BETAS)
            for network in networks
        ]

    def _memory_format(self) -> torch.memory_format:
        """Channels last where tensor cores want it: on CUDA, in half precision."""
        half = self.settings.precision in ("bf16-mixed", "16-mixed")
        fast = half and self.fabric.device.type == "cuda"
        return torch.channels_last if fast else torch.contiguous_format

    def _epoch(self, epoch: int) -> list[Tensor]:
        return epoch_batches(len(self.training), self.settings.batch, self.seed, epoch, self.shard)

    def batches(self, epoch: int, start: int) -> Iterable[Tensor]:
        """Images as bytes, `(M, channels, side, side)`."""
        parts = self._epoch(epoch)
        order = torch.cat(parts).to(self.home)  # once per epoch
        indices = order.split([len(part) for part in parts])[start:]
        images = (self.training.batch(part) for part in indices)
        return images if self.home == self.fabric.device else sent(images, self.fabric.device)

    def step(self, batch: Tensor, progress: float) -> Mapping[str, Tensor]:
        """A step of the discriminator, then one of the generator with the same fakes."""
        if self.average is not None:
            self.average.after(self.steps_done(progress))
        return self.execute(batch, *self.variant(progress))

    def variant(self, progress: float) -> tuple[bool, ...]:
        """What `compute` takes besides the batch in the step at this share of the training."""
        return ()

    def steps_done(self, progress: float) -> int:
        """The number of steps before the one that starts at this share of the training."""
        done: int = round(progress * self.settings.epochs * self.steps)
        return done

    def compute(self, batch: Tensor) -> Mapping[str, Tensor]:
        """All work of a step, on the device alone: the host waits for nothing and decides nothing.

        Returns:
            Losses of both networks, the penalty "r1" and the method's loss, where there are such.
        """
        real = self.enter(batch)
        noise = self.draw(len(real))
        self.discriminator_optimiser.zero_grad()
        real_loss, penalty = self._judge_real(real)
        self.fabric.backward(sum(penalty.values(), real_loss))
        fake = self.generator(noise)
        fake_loss = adversarial_loss(self.discriminator(fake.detach()), 0.0)
        self.fabric.backward(fake_loss)
        self.discriminator_optimiser.step()

        self.generator_optimiser.zero_grad()
        generator_loss = adversarial_loss(self.judge_fixed(fake), 1.0)
        method = self.on_layer.backward(generator_loss, None)
        self.generator_optimiser.step()
        if self.average is not None:
            self.average.update()

        losses = {"discriminator": real_loss + fake_loss, "generator": generator_loss, **penalty}
        return {**{name: loss.detach() for name, loss in losses.items()}, **method}

    def enter(self, batch: Tensor) -> Tensor:
        """Images as bytes in [-1, 1], in the type of the networks."""
        return normalise(batch).to(next(self.inner.parameters()).dtype)

    def draw(self, count: int) -> Tensor:
        """The noise of a step, `(count, z, 1, 1)`."""
        # In a run each process has a seed of its own. Where all have the same seed, their parts are
        # those of one process's noise, as their samples are those of its batch.
        rank, world = self.shard.rank, self.shard.world
        shape = (count * world, self.settings.z, 1, 1)
        return torch.randn(shape, device=self.fabric.device)[rank::world]

    def _judge_real(self, real: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """The discriminator's loss of real images, and the penalty of its gradient if it is set."""
        if not self.settings.r1:
            return adversarial_loss(self.discriminator(real), 1.0), {}
        with self.fabric.autocast():  # a method other than forward may not have it
            logits, gradient = self.discriminator.with_gradient(real)
        penalty = self.settings.r1 / 2 * gradient.square().flatten(1).sum(1).mean()
        return adversarial_loss(logits.to(real.dtype), 1.0), {"r1": penalty}

    def judge_fixed(self, fake: Tensor) -> Tensor:
        """Logits of fakes, by a discriminator that is not trained by them."""
        self.critic.requires_grad_(False)
        try:
            with self.fabric.autocast():
                logits: Tensor = self.critic(fake.to(next(self.critic.parameters()).dtype))
        finally:
            self.critic.requires_grad_(True)
        return logits.to(fake.dtype)

    def evaluate(self) -> dict[str, float]:
        """Metrics of as many samples as are set, of the generator and of its average.

        Both get the same noise, which is the same every time.
        """
        batch, count = self.settings.batch, self.settings.samples
        noise = self._noise(whole_batches(count, batch), "samples").split(batch)
        copies: dict[str, Mapping[str, Tensor]] = {"": {}}
        if self.average is not None:
            copies[AVERAGED] = self.average.weights.state_dict()
        metrics = {}
        for start, weights in copies.items():
            batches = (self.sample(part, weights) for part in noise)
            samples = gather(batches, count, self.fabric.device)
            for name, value in self.judge.compare(samples).items():
                metrics[start + name] = round(value, 7)
        return metrics

    def sample(self, noise: Tensor, weights: Mapping[str, Tensor] | None = None) -> Tensor:
        """Images of a batch of noise, as bytes; leaves the generator as it is.

        Args:
            noise: `(M, z, 1, 1)`.
            weights: parameters and buffers to use in place of the generator's own.
        """
        return generate(self.fabric, self.inner, noise, weights)

    def distances(self) -> Tensor | None:
        """Atomic distances of some generated samples, of the same noise every time."""
        noise = self._noise(SAMPLES, "picture")
        return measure_distances(self.inner, self.settings, [noise], self.sample)

    def _noise(self, count: int, purpose: str) -> Tensor:
        return draw_noise(count, self.settings.z, self.seed, purpose).to(self.fabric.device)

    def broken_down(self, lines: Sequence[Mapping[str, Any]]) -> str | None:
        """How the discriminator won, or the metric became ten times worse or never rose."""
        judge = self.judge
        return find_breakdown(lines, judge.metric, judge.higher_is_better, judge.floor)

    def parts(self) -> dict[str, Any]:
        """Both networks, their optimisers, the generator's average, the method."""
        return {
            "generator": self.generator,
            "discriminator": self.discriminator,
            "generator_optimiser": self.generator_optimiser,
            "discriminator_optimiser": self.discriminator_optimiser,
            **({"ema": self.average.weights} if self.average is not None else {}),
            "method": self.on_layer,
        }

    def describe(self) -> dict[str, Any]:
        """The number of channels of the images."""
        first = torch.zeros(1, dtype=torch.long, device=self.home)
        return {"channels": self.training.batch(first).shape[1]}

    def atoms(self, most: int) -> Atoms | None:
        """Generated images with their charges, from the noise of the picture."""
        images, importance = self._shown()
        if importance is None:
            return None
        charges = first_layer(importance).cpu().numpy()
        return Atoms(charges[:most], images=images.cpu().numpy()[:most])

    def _shown(self) -> tuple[Tensor, Any]:
        """The samples of a picture, and their importance if the method measures it."""
        images = self.sample(self._noise(self.shown, "picture"), self.shown_weights())
        return images, read_importance(self.on_layer.binding)

    def shown_weights(self) -> Mapping[str, Tensor]:
        """Weights that pictures are made with, in place of the generator's own."""
        return {}

    def finish(self) -> list[Path]:
        """A grid of samples, and their token importance if the method measures it."""
        if self.folder is None:
            return []
        files = [self.folder / "samples.png"]
        images, importance = self._shown()
        write_samples(files[0], images)
        if importance is not None:
            files.append(self.folder / "importance.png")
            write_importance(files[1], images.cpu(), first_layer(importance).cpu())
        return files


def adversarial_loss(logits: Tensor, label: float) -> Tensor:
    """Cross-entropy of logits with one label for all: 1 for real images, 0 for fakes.

    For the generator, whose fakes are labelled as real, it is the non-saturating loss.
    """
    return binary_cross_entropy_with_logits(logits, torch.full_like(logits, label))
