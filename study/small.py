"""GANs on images of 16 and 32 px, small enough for a CPU.

atomsep --import study.small sweep digits-gan --methods plain,atom --seeds 5
atomsep --import study.small sweep small-stacked-gan --methods plain,atom --seeds 5
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from math import log2
from pathlib import Path

import torch
from torch import nn

from atomsep.experiments.gan import pictures
from atomsep.experiments.gan.adversarial import Gan
from atomsep.experiments.gan.build import READER_STEPS, find_digits, training_and_judge
from atomsep.experiments.gan.classifier import classifier, kept_in
from atomsep.experiments.gan.dcgan import Discriminator, Generator, initialise
from atomsep.experiments.gan.experiments import (
    MNIST,
    STACKED,
    DcganSettings,
    GanSettings,
    OwnGanSettings,
    StackedSettings,
)
from atomsep.experiments.gan.pictures import Pictures
from atomsep.experiments.gan.stacked import Modes, stack
from atomsep.experiments.registry import register_experiment
from atomsep.experiments.task import Context, Task

SIDE, OWN_SIDE = 16, 32


class SmallDiscriminator(Discriminator):
    """From images of 16 or 32 px to logits."""

    def __init__(self, channels: int, width: int, side: int = SIDE) -> None:
        super().__init__(channels, 1)  # its random numbers are part of what a seed means
        widths = widths_of(width, side)
        first = nn.Conv2d(channels, width, 4, 2, 1, bias=False)
        layers: list[nn.Module] = [first, nn.LeakyReLU(0.2, inplace=True)]
        for before, after in pairwise(widths):
            smaller = nn.Conv2d(before, after, 4, 2, 1, bias=False)
            layers += [smaller, nn.BatchNorm2d(after), nn.LeakyReLU(0.2, inplace=True)]
        self.main = nn.Sequential(*layers, nn.Conv2d(widths[-1], 1, 4, 1, 0, bias=False))
        self.apply(initialise)


class SmallGenerator(Generator):
    """From noise to images of 16 or 32 px; the last hidden layer has a quarter as many tokens."""

    def __init__(self, channels: int, width: int, z: int, side: int = SIDE) -> None:
        super().__init__(channels, 1, z)
        widths = (*reversed(widths_of(width, side)), channels)
        layers: list[nn.Module] = [nn.ConvTranspose2d(z, widths[0], 4, 1, 0, bias=False)]
        for before, after in pairwise(widths):
            larger = nn.ConvTranspose2d(before, after, 4, 2, 1, bias=False)
            layers += [nn.BatchNorm2d(before), nn.ReLU(inplace=True), larger]
        self.main = nn.Sequential(*layers, nn.Tanh())
        self.apply(initialise)


def widths_of(width: int, side: int) -> list[int]:
    """Features of the hidden layers, from the one at half the side down to that at 4 px."""
    return [width * 2**halvings for halvings in range(int(log2(side)) - 2)]


def small_networks(
    settings: DcganSettings, channels: int, side: int = SIDE
) -> tuple[Generator, Discriminator]:
    """Generator and discriminator with their initial weights."""
    width = settings.discriminator_width or settings.width
    generator = SmallGenerator(channels, settings.width, settings.z, side)
    return generator, SmallDiscriminator(channels, width, side)


def reduced(whole: Pictures) -> Pictures:
    """Images of 16 px: means over whole blocks of pixels."""
    parts = whole.images.split(4096)
    small = [nn.functional.adaptive_avg_pool2d(part.float(), SIDE).round() for part in parts]
    return Pictures(torch.cat(small).to(torch.uint8), whole.labels)


def build_digits(context: Context) -> Task:
    """A GAN on scikit-learn's digits."""
    networks = small_networks(context.settings, 1)
    return Gan(context, *networks, *training_and_judge(context, reduced(pictures.digits(1))))


def build_mnist(context: Context) -> Task:
    """A GAN on MNIST."""
    networks = small_networks(context.settings, 1)
    whole = pictures.digits(1) if context.tiny else pictures.mnist(context.data, context.download)
    return Gan(context, *networks, *training_and_judge(context, reduced(whole)))


def build_stacked(context: Context) -> Task:
    """A GAN on stacks of three MNIST digits."""
    networks = small_networks(context.settings, 3)
    digits, held_out = (reduced(part) for part in find_digits(context))
    folder, device = kept_in(context), context.fabric.device
    reader = classifier(digits, device, folder, steps=READER_STEPS, shift=1)
    modes = Modes(reader, held_out, device, sure=not context.tiny)
    return Gan(context, *networks, stack(digits.images, context.settings.train_samples), modes)


def build_own(context: Context) -> Task:
    """A GAN on the images of a folder."""
    settings, cache = context.settings, context.data / "cache"
    whole = pictures.folder(Path(settings.folder), settings.channels, cache, side=OWN_SIDE)
    networks = small_networks(settings, settings.channels, OWN_SIDE)
    return Gan(context, *networks, *training_and_judge(context, whole))


DIGITS = replace(
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
register_experiment(DIGITS)
register_experiment(
    replace(
        DIGITS,
        name="small-mnist-gan",
        title="MNIST at 16 px, DCGAN",
        summary="a small DCGAN on MNIST at 16 px, for a CPU",
        build=build_mnist,
    )
)
register_experiment(
    replace(
        STACKED,
        name="small-stacked-gan",
        title="Stacked MNIST at 16 px, DCGAN",
        summary="a small DCGAN on stacks of three MNIST digits at 16 px, for a CPU",
        settings=StackedSettings(
            epochs=2,
            evaluate_every=0,
            average_last=1,
            layer="main.4",
            width=32,
            discriminator_width=16,
            z=64,
        ),
        build=build_stacked,
    )
)
register_experiment(
    replace(
        MNIST,
        name="small-own-gan",
        title="Own images at 32 px, DCGAN",
        summary="a small DCGAN on a folder of images at 32 px, for a CPU",
        settings=OwnGanSettings(
            evaluate_every=0, average_last=1, layer="main.7", width=32, z=64, samples=2500
        ),
        tiny={},
        build=build_own,
    )
)
