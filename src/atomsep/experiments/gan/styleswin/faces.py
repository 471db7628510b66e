"""StyleSwin in training, with a method on the generator.

The discriminator's loss is that of all GANs here, plus balanced consistency: its logits should stay
the same when images are changed. It is penalised by R1 in every 16th step alone, by an update of
its own after that by its loss, and 16 times as strong ("lazy"); Adam's rates allow for the
additional updates until they fall. It learns faster than the generator (two time scales), and the
gradient of its loss is clipped.

What differs from the authors' training is listed in docs/experiments.md, under "Faces".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from atomsep.experiments.distances import measure_distances
from atomsep.experiments.gan.adversarial import SHOWN, Gan, adversarial_loss
from atomsep.experiments.gan.fidelity import Fidelity
from atomsep.experiments.gan.pictures import Pictures
from atomsep.experiments.gan.styleswin.consistency import augment
from atomsep.experiments.gan.styleswin.discriminator import Discriminator
from atomsep.experiments.optimisers import make_optimiser, set_rate
from atomsep.experiments.task import Context

LARGEST_NORM = 5.0
"""The discriminator's gradient is scaled down to this norm."""

SECOND_BETA = 0.99
"""Adam's second beta; the first is 0."""


class Faces(Gan):
    """StyleSwin's generator and discriminator in training; see `Gan` for the arguments."""

    def __init__(
        self,
        context: Context,
        generator: nn.Module,
        discriminator: Discriminator,
        training: Pictures,
        judge: Fidelity,
    ) -> None:
        super().__init__(context, generator, discriminator, training, judge)
        self.colours = discriminator.colours
        self.shown = min(SHOWN, 2 * context.settings.batch)  # what training has memory for

    def make_optimisers(
        self, context: Context, *networks: nn.Module
    ) -> Sequence[torch.optim.Optimizer]:
        """Adam for generator and discriminator, each at its own rate."""
        settings = context.settings
        # R1's own updates change the weights too: together they are to do as much as without.
        share = settings.r1_every / (settings.r1_every + 1) if settings.r1 else 1.0
        rates = (settings.learning_rate, settings.learning_rate * settings.rate_factor * share)
        betas = ((0.0, SECOND_BETA), (0.0, SECOND_BETA**share))
        return [
            make_optimiser(torch.optim.Adam, network.parameters(), context, rate, betas=pair)
            for network, rate, pair in zip(networks, rates, betas, strict=True)
        ]

    def step(self, batch: Tensor, progress: float) -> Mapping[str, Tensor]:
        """A step of the discriminator, with R1 if it is its turn, then one of the generator."""
        self._set_rates(progress)
        return super().step(batch, progress)

    def variant(self, progress: float) -> tuple[bool, ...]:
        """Whether it is R1's turn."""
        every = self.settings.r1_every
        return (bool(self.settings.r1) and self.steps_done(progress) % every == 0,)

    def _set_rates(self, progress: float) -> None:
        """Let the rates fall, both from their full values: as published, without R1's share."""
        settings, start = self.settings, self.settings.decay_from
        if progress <= start:
            return
        rate = settings.learning_rate * (1 - progress) / (1 - start)
        set_rate(self.generator_optimiser, rate)
        set_rate(self.discriminator_optimiser, rate * settings.rate_factor)

    def _penalise(self, real: Tensor) -> Tensor:
        """Update the discriminator by R1 alone; the mean over all steps is R1 itself."""
        self.discriminator_optimiser.zero_grad()
        with self.fabric.autocast():  # a method other than forward may not have it
            logits, gradient = self.discriminator.with_gradient(real)
        factor = self.settings.r1 / 2 * self.settings.r1_every
        penalty: Tensor = factor * gradient.square().flatten(1).sum(1).mean()
        # The last bias changes no gradient, but data-parallel processes wait for every weight.
        self.fabric.backward(penalty + 0 * logits.sum())
        self.discriminator_optimiser.step()
        return penalty.detach()

    def compute(self, batch: Tensor, penalised: bool = False) -> Mapping[str, Tensor]:
        """All work of a step, on the device alone; see `Gan.compute`.

        Args:
            batch: images as bytes.
            penalised: whether it is R1's turn.
        """
        real = self.enter(batch)
        fake = self.generator(self.draw(len(real)))

        self.discriminator_optimiser.zero_grad()
        judged = [
            self._judge(images, label) for images, label in ((real, 1.0), (fake.detach(), 0.0))
        ]
        self.fabric.clip_gradients(
            self.discriminator,
            self.discriminator_optimiser,
            max_norm=LARGEST_NORM,
            error_if_nonfinite=False,
        )
        self.discriminator_optimiser.step()
        penalty = {"r1": self._penalise(real)} if penalised else {}

        self.generator_optimiser.zero_grad()
        generator_loss = adversarial_loss(self.judge_fixed(fake), 1.0)
        method = self.on_layer.backward(generator_loss, None)
        self.generator_optimiser.step()
        if self.average is not None:
            self.average.update()

        losses = {
            "discriminator": judged[0][0] + judged[1][0],
            "generator": generator_loss.detach(),
        }
        if self.settings.consistency:
            losses["consistency"] = judged[0][1] + judged[1][1]
        return {**losses, **penalty, **method}

    def _judge(self, images: Tensor, label: float) -> tuple[Tensor, Tensor]:
        """Backpropagate the discriminator's loss of real images or fakes; returns its parts."""
        logits = self.discriminator(images)
        loss, change = adversarial_loss(logits, label), torch.zeros_like(logits[0])
        if self.settings.consistency:
            colours = self.colours
            changed = self.discriminator(colours.leave(augment(colours.enter(images))))
            change = self.settings.consistency * mse_loss(changed, logits)
        self.fabric.backward(loss + change)
        return loss.detach(), change.detach()

    def evaluate(self) -> dict[str, float]:
        """The metrics; also writes the pictures of the moment."""
        if self.fabric.is_global_zero:
            self.finish()
        return super().evaluate()

    def shown_weights(self) -> Mapping[str, Tensor]:
        """Those of the moving average: the generator's own change much from step to step."""
        return {} if self.average is None else self.average.weights.state_dict()

    def distances(self) -> Tensor | None:
        """Atomic distances of some generated samples, of the same noise every time."""
        noise = self._noise(self.shown, "picture").split(self.settings.batch)
        return measure_distances(self.inner, self.settings, noise, self.sample)
