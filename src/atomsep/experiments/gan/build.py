"""From the settings of a GAN to its networks with their images."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from pathlib import Path

import torch
from torch import nn

from atomsep.experiments.errors import ExperimentError
from atomsep.experiments.gan import pictures
from atomsep.experiments.gan.adversarial import Gan
from atomsep.experiments.gan.classifier import classifier, kept_in
from atomsep.experiments.gan.dcgan import Discriminator, Generator
from atomsep.experiments.gan.experiments import DcganSettings
from atomsep.experiments.gan.features import Features, features_before_images, find_features
from atomsep.experiments.gan.fidelity import Fidelity
from atomsep.experiments.gan.pictures import Pictures
from atomsep.experiments.gan.sampling import TrainedGan
from atomsep.experiments.gan.stacked import Modes, stack
from atomsep.experiments.randomness import generator as stream
from atomsep.experiments.task import Context, Task
from atomsep.experiments.trained import Saved

READER_STEPS, READER_SHIFT = 4000, 4
"""Training of the classifier that reads stacked digits: it must err less than that of features."""


def build_mnist(context: Context) -> Task:
    """A GAN on MNIST."""
    return build(context, lambda: pictures.mnist(context.data, context.download), 1)


def build_cifar10(context: Context) -> Task:
    """A GAN on CIFAR-10."""
    return build(context, lambda: pictures.cifar10(context.data, context.download), 3)


def build_own(context: Context) -> Task:
    """A GAN on the images of a folder."""
    folder, channels = context.settings.folder, context.settings.channels

    def read() -> Pictures:
        if not folder:
            raise ExperimentError("name the folder of the images with --set folder=PATH")
        skip, cache = context.settings.unreadable == "skip", context.data / "cache"
        return pictures.folder(Path(folder), channels, cache, skip)

    return build(context, read, channels, slow=True)


def build_stacked(context: Context) -> Task:
    """A GAN on stacks of three digits."""
    networks = make_networks(context.settings, 3)
    digits, held_out = find_digits(context)
    device = context.fabric.device
    reader = classifier(digits, device, kept_in(context), steps=READER_STEPS, shift=READER_SHIFT)
    modes = Modes(reader, held_out, device, sure=not context.tiny)
    return Gan(context, *networks, stack(digits.images, context.settings.train_samples), modes)


def find_digits(context: Context) -> tuple[Pictures, Pictures]:
    """Digits to train on, and others: MNIST's test images, or a tenth of the training images.

    A search does not look at the test images.
    """
    whole = pictures.digits(1) if context.tiny else pictures.mnist(context.data, context.download)
    searching = context.tiny or context.validation
    if not searching and pictures.has_test_images(context.data / "mnist"):
        return whole, pictures.mnist(context.data, context.download, "test")
    order = torch.randperm(len(whole), generator=stream(0, "training samples"))
    part = len(whole) // 10
    return whole.take(order[part:]), whole.take(order[:part])


def build(
    context: Context, read: Callable[[], Pictures], channels: int, *, slow: bool = False
) -> Task:
    """The networks of a seed with their images.

    Args:
        context: context of the run.
        read: reads the images.
        channels: colours of the images.
        slow: whether reading takes long, so that missing features are to be said before.
    """
    networks = make_networks(context.settings, channels)
    features = features_before_images(context) if slow else None
    embedded = context.tiny and not getattr(context.settings, "folder", "")
    whole = pictures.digits(channels) if embedded else read()
    return Gan(context, *networks, *training_and_judge(context, whole, features))


def training_and_judge(
    context: Context, whole: Pictures, features: Features | None = None
) -> tuple[Pictures, Fidelity]:
    """The images to train on, and the judge: it compares with them, or with some held out.

    Args:
        context: context of the run.
        whole: all images.
        features: what the judge compares; None for those that the settings select.
    """
    settings = context.settings
    order = torch.randperm(len(whole), generator=stream(0, "training samples"))
    held_out = None
    if context.validation:
        part = max(1, len(whole) // 10)
        held_out, order = whole.take(order[:part]), order[part:]
    training = whole
    if context.validation or settings.train_samples:
        training = whole.take(order[: settings.train_samples or None].sort().values)
    features = find_features(context, training) if features is None else features
    return training, Fidelity(features, (held_out or training).images)


def load(saved: Saved) -> TrainedGan:
    """The trained networks of a run."""
    return load_networks(saved, *make_networks(saved.settings, saved.need("channels")))


def load_networks(saved: Saved, generator: nn.Module, discriminator: nn.Module) -> TrainedGan:
    """Networks with the weights of a run."""
    averaged = deepcopy(generator) if saved.settings.ema else None
    saved.weights_into(generator, "generator")
    saved.weights_into(discriminator, "discriminator")
    if averaged is not None:
        saved.weights_into(averaged, "ema")
    binding = saved.bound(generator, features=saved.settings.hidden)
    return TrainedGan(saved, generator, discriminator, averaged, binding)


def make_networks(settings: DcganSettings, channels: int) -> tuple[Generator, Discriminator]:
    """Generator and discriminator with their initial weights."""
    generator = Generator(channels, settings.width, settings.z)
    return generator, Discriminator(channels, settings.discriminator_width or settings.width)
