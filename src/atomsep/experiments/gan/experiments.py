"""The GANs of the paper's image synthesis, and one on a user's own folder of images.

The paper gives one weight, 0.02, for atom modeling. With means over tokens, as here, a trial on
MNIST found 1 to be good. SSCL gets 0.02, and VQ its own loss unweighted, as mode seeking is
published; docs/baselines.md says where the weights of KoLeo and VICReg come from.

A GAN's quality fluctuates, so it is evaluated every 1,000 steps, and the mean of the last six
evaluations is reported: for the generator itself under the metrics' plain names, and for the moving
average of its weights under names that start with `ema_`. Samples are compared with all training
images (in a search, with a tenth that is held out).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from atomsep.experiments.gan.styleswin.sizes import features_at
from atomsep.experiments.settings import LAYOUTS, Settings, setting
from atomsep.experiments.task import Experiment, deferred
from atomsep.methods.registry import ATOM_MODELING, OfferedMethods

LAST_HIDDEN = "main.10"
"""The generator's last hidden layer before its activation, `(M, width, 32, 32)`."""

NEIGHBOURS = 3
"""A sample's ball reaches to its third neighbour, as in the paper on precision and recall."""

AVERAGED = "ema_"
"""Start of the names of metrics of the averaged generator."""

HALF_LIFE = 0.5 ** (32 / 10_000)
"""Decay per step of StyleSwin's average: 10,000 images in batches of 32 halve what it holds."""

TINY = {
    "epochs": 2,
    "evaluate_every": 0,
    "average_last": 1,
    "batch": 32,
    "width": 8,
    "train_samples": 256,
    "samples": 64,
    "features": "classifier",
}


@dataclass(frozen=True)
class DcganSettings(Settings):
    """Settings of all GANs."""

    epochs: int = setting(25, "passes over the training images", low=1)
    evaluate_every: int = setting(
        1000, "steps between evaluations, counted back from the end; 0: only at the end", low=0
    )
    average_last: int = setting(
        6, "number of last evaluations whose metrics are averaged; if fewer, all", low=1
    )
    learning_rate: float = setting(2e-4, "learning rate of Adam, for both networks", low=0)
    ema: float = setting(
        0.999, "decay per step of the generator's moving average; 0: none", low=0, high=1
    )
    r1: float = setting(
        0.0, "factor gamma of the discriminator's gradient penalty R1; 0: none", low=0
    )
    layer: str = setting(LAST_HIDDEN, "layer of the generator that the method acts on")
    width: int = setting(64, "features of the generator's last hidden layer", low=1)
    discriminator_width: int = setting(
        0, "features of the discriminator's first hidden layer; 0: the same as width", low=0
    )
    z: int = setting(100, "length of the noise", low=1)
    train_samples: int = setting(0, "number of training images, drawn from all; 0: all", low=0)
    samples: int = setting(
        10_000, "generated images that metrics are computed over", low=NEIGHBOURS + 1
    )

    @property
    def hidden(self) -> int:
        """Features of the generator's last hidden layer."""
        return self.width

    def evaluation_points(self, steps: int) -> list[int]:
        """Numbers of steps after which the model is evaluated; see `Settings`.

        Example:
            >>> DcganSettings(epochs=5, evaluate_every=20).evaluation_points(10)
            [10, 30, 50]
        """
        total = self.epochs * steps
        return list(range(total, 0, -(self.evaluate_every or total)))[::-1]


@dataclass(frozen=True)
class GanSettings(DcganSettings):
    """Settings of the GANs whose samples are compared with real images."""

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


@dataclass(frozen=True)
class StackedSettings(DcganSettings):
    """Settings of the GAN on stacked digits."""

    evaluate_every: int = setting(
        2000, "steps between evaluations, counted back from the end; 0: only at the end", low=0
    )
    train_samples: int = setting(128_000, "stacks of three digits to train on", low=2)
    samples: int = setting(26_000, "generated images in which modes are counted", low=1)


@dataclass(frozen=True)
class FacesSettings(GanSettings):
    """Settings of StyleSwin: those of its authors for CelebA-HQ at 256 px.

    Their 800,000 steps are 853 passes over the 30,000 images of CelebA-HQ, and 114 steps less.
    """

    epochs: int = setting(853, "passes over the training images", low=1)
    batch: int = setting(32, "samples per step, over all devices", low=1)
    evaluate_every: int = setting(
        50_000, "steps between evaluations, counted back from the end; 0: only at the end", low=0
    )
    average_last: int = setting(
        1, "number of last evaluations whose metrics are averaged; if fewer, all", low=1
    )
    learning_rate: float = setting(5e-5, "learning rate of Adam, for the generator", low=0)
    rate_factor: float = setting(
        4.0, "discriminator's learning rate, as a multiple of the generator's", low=0
    )
    decay_from: float = setting(
        0.625, "share of the training after which learning rates fall to 0", low=0, high=1
    )
    ema: float = setting(
        HALF_LIFE, "decay per step of the generator's moving average; 0: none", low=0, high=1
    )
    r1: float = setting(
        5.0, "factor gamma of the discriminator's gradient penalty R1; 0: none", low=0
    )
    r1_every: int = setting(16, "steps between two R1 penalties", low=1)
    consistency: float = setting(
        10.0, "factor of the balanced consistency of the discriminator; 0: none", low=0
    )
    size: int = setting(256, "height and width of the images", choices=(64, 128, 256))
    layer: str = setting("hidden", "layer of the generator that the method acts on")
    layout: str = setting(
        "channels_last", "position of the tokens in the layer's output", choices=LAYOUTS
    )
    width: int = setting(512, "features of the generator at up to 32 px", low=8)
    discriminator_width: int = setting(
        0, "features of the discriminator at up to 32 px; 0: the same as width", low=0
    )
    multiplier: int = setting(2, "factor on the number of features at 64 px and more", low=1)
    z: int = setting(512, "length of noise and style", low=1)
    samples: int = setting(
        30_000, "generated images that metrics are computed over", low=NEIGHBOURS + 1
    )
    folder: str = setting("", "folder of the images; if not set, the one in --data")
    unreadable: str = setting(
        "stop", "what to do with an image that cannot be read", choices=("stop", "skip")
    )

    @property
    def hidden(self) -> int:
        """Features of the generator's last hidden layer of half the resolution."""
        return features_at(self.size // 2, self.width, self.multiplier)


MNIST = Experiment(
    name="mnist-gan",
    title="MNIST, DCGAN",
    summary="DCGAN on MNIST at 64 px",
    settings=GanSettings(samples=2000),
    tiny=TINY,
    build=deferred("atomsep.experiments.gan.build:build_mnist"),
    load=deferred("atomsep.experiments.gan.build:load"),
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
STACKED = replace(
    MNIST,
    name="stacked-mnist-gan",
    title="Stacked MNIST, DCGAN",
    summary="DCGAN on stacks of three MNIST digits: how many of 1,000 modes it generates",
    settings=StackedSettings(),
    tiny={name: value for name, value in TINY.items() if name != "features"},
    build=deferred("atomsep.experiments.gan.build:build_stacked"),
    metric="modes",
    higher_is_better=True,
)
FACES = replace(
    MNIST,
    name="faces-gan",
    title="Faces, StyleSwin",
    summary="StyleSwin on faces, or any folder of images (folder=PATH)",
    settings=FacesSettings(),
    tiny={
        **TINY,
        "epochs": 1,
        "batch": 4,
        "size": 64,
        "width": 8,
        "z": 8,
        "train_samples": 72,
        "samples": 8,
    },
    build=deferred("atomsep.experiments.gan.styleswin.build:build_faces"),
    load=deferred("atomsep.experiments.gan.styleswin.build:load_faces"),
    plain="StyleSwin",
    learning_rates=(2.5e-5, 5e-5, 1e-4),
)
GANS = (MNIST, CIFAR10, OWN, STACKED, FACES)
