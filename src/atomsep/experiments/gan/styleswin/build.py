"""From the settings of StyleSwin to its networks with their images."""

from __future__ import annotations

from pathlib import Path

from atomsep.experiments.gan import pictures
from atomsep.experiments.gan.build import load_networks, training_and_judge
from atomsep.experiments.gan.experiments import FacesSettings
from atomsep.experiments.gan.features import features_before_images
from atomsep.experiments.gan.pictures import Pictures
from atomsep.experiments.gan.sampling import TrainedGan
from atomsep.experiments.gan.styleswin.discriminator import Discriminator
from atomsep.experiments.gan.styleswin.faces import Faces
from atomsep.experiments.gan.styleswin.generator import Generator
from atomsep.experiments.task import Context, Task
from atomsep.experiments.trained import Saved

CELEBA = "celeba-hq"
"""Folder of the paper's faces beside the other data."""


def build_faces(context: Context) -> Task:
    """StyleSwin on a folder of images."""
    networks = make_networks(context.settings)
    features = features_before_images(context)
    return Faces(context, *networks, *training_and_judge(context, find_images(context), features))


def find_images(context: Context) -> Pictures:
    """CelebA-HQ, or all images of the folder that the run names.

    Raises:
        ExperimentError: there is no such folder, or no image in it.
    """
    settings = context.settings
    if context.tiny and not settings.folder:
        return pictures.digits(3, settings.size)
    folder = Path(settings.folder) if settings.folder else context.data / CELEBA
    skip, cache = settings.unreadable == "skip", context.data / "cache"
    return pictures.folder(folder, 3, cache, skip, settings.size)


def load_faces(saved: Saved) -> TrainedGan:
    """The trained networks of a run."""
    return load_networks(saved, *make_networks(saved.settings))


def make_networks(settings: FacesSettings) -> tuple[Generator, Discriminator]:
    """Generator and discriminator with their initial weights."""
    size, multiplier = settings.size, settings.multiplier
    generator = Generator(size, settings.width, multiplier, settings.z)
    width = settings.discriminator_width or settings.width
    return generator, Discriminator(size, width, multiplier)
