"""The GANs of the paper's image synthesis, and one on a user's own folder of images.

The paper gives one weight, 0.02, for atom modeling. With means over tokens, as here, a trial on
MNIST found 1 to be good. SSCL gets 0.02, and VQ its own loss unweighted, as mode seeking is
published; docs/baselines.md says where the weights of KoLeo and VICReg come from.

A GAN's quality varies from epoch to epoch, so the mean over the last six is reported. Samples are
compared with all training images (in a search, with a tenth that is held out).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from atomsep.experiments.settings import Settings, setting
from atomsep.experiments.task import Experiment, deferred
from atomsep.methods.registry import ATOM_MODELING, OfferedMethods

LAST_HIDDEN = "main.10"
"""The generator's last hidden layer before its activation, `(M, width, 32, 32)`."""

NEIGHBOURS = 3
"""A sample's ball reaches to its third neighbour, as in the paper on precision and recall."""

TINY = {
    "epochs": 2,
    "average_last": 1,
    "batch": 32,
    "width": 8,
    "train_samples": 256,
    "samples": 64,
    "features": "classifier",
}


@dataclass(frozen=True)
class GanSettings(Settings):
    """Settings of the GANs."""

    epochs: int = setting(25, "passes over the training images", low=1)
    average_last: int = setting(6, "last epochs whose mean metrics are the result", low=1)
    learning_rate: float = setting(2e-4, "learning rate of Adam, for both networks", low=0)
    layer: str = setting(LAST_HIDDEN, "layer of the generator that the method acts on")
    width: int = setting(64, "features of the generator's last hidden layer", low=1)
    z: int = setting(100, "length of the noise", low=1)
    train_samples: int = setting(0, "training images, drawn from all; 0: all", low=0)
    samples: int = setting(
        10_000, "generated images that metrics are computed over", low=NEIGHBOURS + 1
    )
    features: str = setting(
        "inception",
        "features of the Fréchet distance: inception, classifier or package.module:function",
    )
    features_weights: str = setting("", "file of Inception's weights; if not set, torch's cache")


@dataclass(frozen=True)
class OwnGanSettings(GanSettings):
    """Settings of a GAN on a folder of images."""

    folder: str = setting("", "folder of the images; its subfolders are classes")
    channels: int = setting(3, "1 for grey images, 3 for colour", choices=(1, 3))
    unreadable: str = setting(
        "stop", "what to do with an image that cannot be read", choices=("stop", "skip")
    )


MNIST = Experiment(
    name="mnist-gan",
    title="MNIST, DCGAN",
    summary="DCGAN on MNIST at 64 px",
    settings=GanSettings(samples=2000),
    tiny=TINY,
    build=deferred("atomsep.experiments.gan.build:build_mnist"),
    methods=OfferedMethods("gan"),
    metric="fid",
    higher_is_better=False,
    percent=False,
    plain="DCGAN",
    weights={
        "sscl": 0.02,
        "koleo": 0.2,
        **dict.fromkeys(("vq", "vicreg", "mode-seeking", *ATOM_MODELING), 1.0),
    },
    learning_rates=(1e-4, 2e-4, 4e-4),
    weight_grid={
        "": (0.05, 0.02, 0.01, 0.005, 0.002, 0.001),
        "vq": (2.0, 1.0, 0.5, 0.2, 0.1),
        "koleo": (1.0, 0.5, 0.2, 0.1, 0.05, 0.02),
        **dict.fromkeys(("vicreg", "mode-seeking", *ATOM_MODELING), (5.0, 2.0, 1.0, 0.5, 0.2, 0.1)),
    },
)
CIFAR10 = replace(
    MNIST,
    name="cifar10-gan",
    title="CIFAR-10, DCGAN",
    summary="DCGAN on CIFAR-10 at 64 px",
    settings=GanSettings(),
    build=deferred("atomsep.experiments.gan.build:build_cifar10"),
)
OWN = replace(
    MNIST,
    name="own-gan",
    title="Own images, DCGAN",
    summary="DCGAN on any folder of images (folder=PATH)",
    settings=OwnGanSettings(),
    build=deferred("atomsep.experiments.gan.build:build_own"),
)
GANS = (MNIST, CIFAR10, OWN)
