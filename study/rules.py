"""Rules for the strength of atom modeling, as methods to compare, and a GAN small enough for a CPU.

    atomsep --import study.rules sweep digits-gan --methods plain,atom,atom-share --seeds 5
    atomsep --import study.rules sweep mnist-gan --methods plain,atom-capped --set weight=0.1

With `atom` the setting `weight` is the weight. With the rules below it is the share that is asked
for: the norm of the loss's gradient at the layer over that of the task's gradient there.

    atom-share       in every step, the weight that gives the share
    atom-calibrated  the same over the first hundred steps, then the geometric mean of their weights
    atom-capped      as atom-share, but the weight never exceeds the one of atom-calibrated
    atom-decay       as atom-calibrated, times a factor that falls to 0 over `method.steps` steps
    atom-warm-up     as atom-calibrated, times a factor that rises from 0 over `method.steps` steps
    atom-energy      as atom-calibrated, with the energy ten times stronger than the constraints
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx

from atomsep.experiments.gan import pictures
from atomsep.experiments.gan.adversarial import Gan
from atomsep.experiments.gan.build import training_and_judge
from atomsep.experiments.gan.dcgan import Discriminator, Generator, initialise
from atomsep.experiments.gan.experiments import MNIST, GanSettings
from atomsep.experiments.gan.pictures import Pictures
from atomsep.experiments.registry import register_experiment
from atomsep.experiments.task import Context, Task
from atomsep.hooks.reader import LayerReader
from atomsep.hooks.strength import Strength
from atomsep.hooks.targets import find_layers, put_tensor
from atomsep.methods import METHODS, Binding, register
from atomsep.methods.atom import Atom

CALIBRATION = 100
"""Steps over which the weight is measured."""


class Gauge(torch.autograd.Function):
    """Splits a latent into one for the loss and one for the task, and weighs their gradients."""

    @staticmethod
    def forward(ctx: Any, latent: Tensor, rule: RuledAtom, share: float) -> tuple[Tensor, Tensor]:
        """The latent twice."""
        ctx.rule, ctx.share = rule, share
        return latent.clone(), latent.clone()

    @staticmethod
    def backward(ctx: FunctionCtx, *gradients: Tensor) -> tuple[Tensor, None, None]:
        """The task's gradient plus the loss's, times the rule's weight."""
        own, task = gradients
        weight = ctx.rule.weigh(ctx.share, own, task)  # type: ignore[attr-defined]
        return task + (weight * own.float()).to(task.dtype), None, None


class RuledAtom(Atom):
    """Atom modeling whose weight follows from a share of the task's gradient.

    Args:
        rule: see above.
        steps: length of the decay or warm-up.
        **settings: those of `Atom`.
    """

    def __init__(
        self,
        rule: str = "share",
        steps: int = 1000,
        energy: float = 1.0,
        neutrality: float = 1.0,
        occupancy: float = 1.0,
        seed: int = 0,
    ) -> None:
        super().__init__(neutrality=neutrality, occupancy=occupancy, seed=seed, energy=energy)
        self.rule, self.steps = rule, steps
        self.register_buffer("step", torch.zeros(()))
        self.register_buffer("log_weight", torch.zeros(()))  # the sum over the first steps
        self.register_buffer("counted", torch.zeros(()))  # those of them in which there was one

    def weigh(self, share: float, own: Tensor, task: Tensor) -> Tensor:
        """The weight of this step. Runs in the backward pass, on the device, without waiting."""
        own_norm, task_norm = (
            torch.linalg.vector_norm(g, dtype=torch.float32) for g in (own, task)
        )
        usable = (own_norm > 0) & (task_norm > 0) & own_norm.isfinite() & task_norm.isfinite()
        exact = torch.where(usable, share * task_norm / own_norm, 0)
        measuring = (self.step < CALIBRATION) & usable
        self.log_weight += torch.where(measuring, exact.clamp_min(1e-30).log(), 0)
        self.counted += measuring
        self.step += 1
        if self.rule == "share":
            return exact
        calibrated = (self.log_weight / self.counted.clamp_min(1)).exp()
        if self.rule == "capped":
            return torch.minimum(exact, calibrated)
        weight = torch.where(self.step <= CALIBRATION, exact, calibrated)
        progress = (self.step / self.steps).clamp(0, 1)
        factors = {"calibrated": 1.0, "decay": 1 - progress, "warm-up": progress}
        return torch.where(usable, factors[self.rule] * weight, 0)

    def bind(
        self,
        model: nn.Module,
        layer: Any,
        *,
        weight: float = 0.1,
        layout: Any = "auto",
        mask: Any = None,
        select: Any = None,
    ) -> Binding:
        """Put the rule on a layer; `weight` is the share."""
        [found] = find_layers(model, layer).items()
        return RuledBinding(self, LayerReader(model, *found, layout, mask, select), weight)


class RuledBinding(Binding):
    """A rule on a layer."""

    def __init__(self, method: RuledAtom, reader: LayerReader, share: float) -> None:
        self.method, self.reader, self.share = method, reader, share
        self.held: tuple[Tensor, Tensor | None] | None = None
        reader.listen(self._hook)

    def _hook(self, module: nn.Module, args: Any, output: Any) -> Any:
        key, latent = self.reader.pick(output)
        if not (self.reader.model.training and torch.is_grad_enabled()):
            return None
        layout = self.reader.layout(latent)
        self.strength = Strength(layout, 0) if self.watch_gradients else None
        for_loss, rest = Gauge.apply(latent, self.method, self.share)  # type: ignore[no-untyped-call]
        if self.strength is not None:
            for_loss.register_hook(self.strength._noting("own"))
            rest.register_hook(self.strength._noting("task"))
        self.held = layout.tokens(for_loss), self.reader.mask(layout, latent)
        return put_tensor(output, key, rest)

    def loss(self, labels: Tensor | None = None, again: Callable[[], Any] | None = None) -> Tensor:
        """The unweighted loss; its gradient is weighed at the layer."""
        assert self.held is not None, "the model has not run"
        (latent, mask), self.held = self.held, None
        value: Tensor = self.method(latent, None, mask)
        return value

    @property
    def gradient_shares(self) -> dict[str, float]:
        """Shares before weighing: that of the unweighted loss."""
        return {} if self.strength is None else self.strength.shares()

    def detach(self) -> None:
        """Take every hook off the model."""
        self.reader.remove()


RULES = ("share", "calibrated", "capped", "decay", "warm-up")
for _rule in RULES:
    if f"atom-{_rule}" not in METHODS:
        register(
            f"atom-{_rule}", RuledAtom, f"atom modeling, strength by the rule {_rule}", rule=_rule
        )
if "atom-energy" not in METHODS:
    register(
        *("atom-energy", RuledAtom, "atom modeling calibrated, with a stronger energy"),
        rule="calibrated",
        energy=10.0,
    )


class DigitDiscriminator(Discriminator):
    """From images of 16 px to logits."""

    def __init__(self, channels: int, width: int) -> None:
        super().__init__(channels, 1)
        self.main = nn.Sequential(
            *(nn.Conv2d(channels, width, 4, 2, 1, bias=False), nn.LeakyReLU(0.2, inplace=True)),
            *(nn.Conv2d(width, 2 * width, 4, 2, 1, bias=False), nn.BatchNorm2d(2 * width)),
            *(nn.LeakyReLU(0.2, inplace=True), nn.Conv2d(2 * width, 1, 4, 1, 0, bias=False)),
        )
        self.apply(initialise)


class DigitGenerator(Generator):
    """From noise to images of 16 px; the last hidden layer has 64 tokens."""

    def __init__(self, channels: int, width: int, z: int) -> None:
        super().__init__(channels, 1, z)
        self.main = nn.Sequential(
            *(nn.ConvTranspose2d(z, 2 * width, 4, 1, 0, bias=False), nn.BatchNorm2d(2 * width)),
            *(nn.ReLU(inplace=True), nn.ConvTranspose2d(2 * width, width, 4, 2, 1, bias=False)),
            *(nn.BatchNorm2d(width), nn.ReLU(inplace=True)),
            *(nn.ConvTranspose2d(width, channels, 4, 2, 1, bias=False), nn.Tanh()),
        )
        self.apply(initialise)


def build_digits(context: Context) -> Task:
    """A GAN on scikit-learn's digits at 16 px."""
    settings = context.settings
    networks = (
        DigitGenerator(1, settings.width, settings.z),
        DigitDiscriminator(1, settings.discriminator_width or settings.width),
    )
    whole = pictures.digits(1)
    small = torch.nn.functional.adaptive_avg_pool2d(whole.images.float(), 16).round().byte()
    training = Pictures(small, whole.labels)
    return Gan(context, *networks, *training_and_judge(context, training))


register_experiment(
    replace(
        MNIST,
        name="digits-gan",
        title="Digits, DCGAN",
        summary="a small DCGAN on scikit-learn's digits at 16 px, for a CPU",
        settings=GanSettings(
            epochs=80,
            learning_rate=5e-4,
            evaluate_every=280,
            average_last=3,
            layer="main.4",
            width=32,
            z=64,
            samples=1797,
            features="classifier",
        ),
        tiny={"epochs": 1},
        build=build_digits,
    )
)
