"""The GANs of the paper's image synthesis, and one on a user's own folder of images.

The paper gives one weight, 0.02, for atom modeling. With the mean over tokens, as here, a probe on
MNIST found 1 to be good. 0.02 goes to SSCL, and VQ has its own loss unweighted.

A GAN's quality jumps from epoch to epoch, so the mean over the last six is reported. Samples are
compared with all training images (for a search, with a tenth that is held out).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

from atomsep.experiments.errors import ExperimentError
from atomsep.experiments.gan import pictures
from atomsep.experiments.gan.adversarial import Gan, GanSettings, OwnGanSettings
from atomsep.experiments.gan.dcgan import Discriminator, Generator
from atomsep.experiments.gan.features import find_features
from atomsep.experiments.gan.fidelity import Fidelity
from atomsep.experiments.gan.pictures import Pictures
from atomsep.experiments.randomness import generator as stream
from atomsep.experiments.task import Context, Experiment, Task
from atomsep.methods.registry import ATOM_MODELING, OfferedMethods

TINY = {
    "epochs": 2,
    "average_last": 1,
    "batch": 32,
    "width": 8,
    "train_samples": 256,
    "samples": 64,
    "features": "classifier",
}


def build(read: Callable[[Context], Pictures], channels: int, context: Context) -> Task:
    """The networks of a seed with their images."""
    settings = context.settings
    generator = Generator(channels, settings.width, settings.z)
    discriminator = Discriminator(channels, settings.width)
    embedded = context.tiny and not getattr(settings, "folder", "")
    whole = pictures.digits(channels) if embedded else read(context)
    order = torch.randperm(len(whole), generator=stream(0, "training samples"))
    held_out = None
    if context.validation:
        part = max(1, len(whole) // 10)
        held_out, order = whole.take(order[:part]), order[part:]
    training = whole
    if context.validation or settings.train_samples:
        training = whole.take(order[: settings.train_samples or None].sort().values)
    features = find_features(
        settings.features,
        settings.features_weights,
        training,
        device=context.fabric.device,
        data=None if context.tiny else context.data,
        download=context.download,
    )
    fidelity = Fidelity(features, (held_out or training).images)
    return Gan(context, generator, discriminator, training, fidelity)


def _read_folder(context: Context) -> Pictures:
    settings = context.settings
    if not settings.folder:
        raise ExperimentError("own-gan trains on a folder of images; name it: --set folder=PATH")
    return pictures.folder(Path(settings.folder), settings.channels, settings.unreadable == "skip")


def _build_own(context: Context) -> Task:
    channels = context.settings.channels
    if channels not in (1, 3):
        raise ExperimentError(f"channels must be 1 (grey) or 3 (coloured), not {channels}")
    return build(_read_folder, channels, context)


def _experiment(
    name: str,
    title: str,
    summary: str,
    settings: GanSettings,
    make: Callable[[Context], Task],
) -> Experiment:
    return Experiment(
        name=name,
        title=title,
        summary=summary,
        settings=settings,
        tiny=TINY,
        build=make,
        methods=OfferedMethods("gan"),
        metric="fid",
        higher_is_better=False,
        percent=False,
        plain="DCGAN",
        weights={"vq": 1.0, "sscl": 0.02, **dict.fromkeys(ATOM_MODELING, 1.0)},
        learning_rates=(1e-4, 2e-4, 4e-4),
        weight_grid={
            "": (0.05, 0.02, 0.01, 0.005, 0.002, 0.001),
            "vq": (2.0, 1.0, 0.5, 0.2, 0.1),
            **dict.fromkeys(ATOM_MODELING, (5.0, 2.0, 1.0, 0.5, 0.2, 0.1)),
        },
    )


GANS = (
    _experiment(
        "mnist-gan",
        "MNIST, DCGAN",
        "DCGAN on MNIST at 64 px",
        GanSettings(samples=2000),
        partial(build, lambda context: pictures.mnist(context.data, context.download), 1),
    ),
    _experiment(
        "cifar10-gan",
        "CIFAR-10, DCGAN",
        "DCGAN on CIFAR-10 at 64 px",
        GanSettings(),
        partial(build, lambda context: pictures.cifar10(context.data, context.download), 3),
    ),
    _experiment(
        "own-gan",
        "Own images, DCGAN",
        "DCGAN on any folder of images (folder=PATH)",
        OwnGanSettings(),
        _build_own,
    ),
)
