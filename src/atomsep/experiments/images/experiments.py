"""Image classification: Pets, Flowers, ImageNet (the paper's tables 3 and 4), and own images.

The paper trains a ResNet-18 from scratch on Pets and Flowers and does not state image size, epochs
and learning rate; here they are 96 pixels and 60 epochs of SGD with a cosine schedule. ImageNet
follows PyTorch's example. Its second augmentation adds colour jitter and grayscale to the crop and
the flip, and changes nothing else, as in the paper.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from atomsep.experiments.entry_points import is_entry_point
from atomsep.experiments.errors import ExperimentError
from atomsep.experiments.schedules import SCHEDULES
from atomsep.experiments.settings import Settings, setting
from atomsep.experiments.task import Experiment, deferred
from atomsep.methods.registry import ATOM_MODELING, OfferedMethods

STEMS = ("imagenet", "cifar")
STAGES = 4

LAYOUT = "FOLDER/train/CLASS/*.jpg and FOLDER/val/CLASS/*.jpg, or FOLDER/CLASS/*.jpg"
"""What a folder of images must be like."""


@dataclass(frozen=True)
class ImageSettings(Settings):
    """Settings of image classification."""

    epochs: int = setting(60, "passes over the training samples", low=1)
    learning_rate: float = setting(0.05, "learning rate of the optimiser", low=0)
    layer: str = setting(
        "layer1.1.bn2", "layer that the method acts on, by its dotted name or a pattern"
    )
    model: str = setting("resnet18", "torchvision model, or your package.module:function")
    stem: str = setting(
        "imagenet", "first layers of a ResNet; cifar: for small images", choices=STEMS
    )
    stages: int = setting(STAGES, "stages of a ResNet to keep, from the first", low=1)
    image: int = setting(96, "width and height in pixels", low=16)
    augmentation: str = setting(
        "crop-flip",
        "augmentation of training images",
        choices=("crop-flip", "crop-flip-colour", "pad-crop-flip", "none"),
    )
    crop_scale: float = setting(
        0.35, "smallest share of an image's area that is cropped", low=0, high=1
    )
    stored: int = setting(
        0,
        "shorter side, in pixels, to which larger training images are reduced before they are "
        "cropped; 0: twice the image size",
        low=0,
    )
    optimiser: str = setting("sgd", "optimiser of the model", choices=("sgd", "adamw"))
    momentum: float = setting(0.9, "momentum of SGD", low=0)
    weight_decay: float = setting(5e-4, "weight decay of all parameters", low=0)
    schedule: str = setting("cosine", "schedule of the learning rate", choices=tuple(SCHEDULES))
    warmup: float = setting(
        0.0, "share of the training over which the learning rate rises", low=0, high=1
    )
    unreadable: str = setting(
        "stop", "what to do with an image that cannot be read", choices=("stop", "skip")
    )
    labels: float = setting(
        1.0, "share of each class's training images to train on; at least one", low=0, high=1
    )
    robustness: bool = setting(
        False, "evaluate at the end under noise, blur, contrast and JPEG as well: 20 more passes"
    )


@dataclass(frozen=True)
class FolderSettings(ImageSettings):
    """Settings of image classification from a folder."""

    folder: str = setting(
        "", "folder of the images, or package.module:function, which returns them"
    )


def check_own_images(settings: FolderSettings) -> None:
    """See that `folder` names a folder or a function.

    Raises:
        ExperimentError: it is not set, or there is no such folder.
    """
    folder = settings.folder
    if not folder:
        raise ExperimentError(f"name the folder of the images with --set folder=FOLDER: {LAYOUT}")
    if not Path(folder).is_dir() and not is_entry_point(folder):
        raise ExperimentError(f"there is no folder {folder}; name one with the layout {LAYOUT}")


# The 1-norm adds up all features of all tokens, and is by far the largest.
WEIGHTS = {
    "hinge-1": 0.001,
    **dict.fromkeys(("hinge-2", "rank-h", "simclr"), 0.01),
    **dict.fromkeys(("koleo", "vicreg"), 0.1),
}
TINY = {"epochs": 2, "batch": 32, "image": 32, "stages": 1, "learning_rate": 0.05}

PETS = Experiment(
    name="pets",
    title="Pets",
    summary="ResNet-18 from scratch on Oxford-IIIT Pets",
    settings=ImageSettings(),
    tiny=TINY,
    build=deferred("atomsep.experiments.images.build:build_pets"),
    load=deferred("atomsep.experiments.images.build:load"),
    methods=OfferedMethods("images", "labels", "augmentation"),
    metric="top1",
    weights={**WEIGHTS, **dict.fromkeys(ATOM_MODELING, 0.2)},
    learning_rates=(0.01, 0.02, 0.05, 0.1, 0.2),
    weight_decays=(1e-4, 5e-4, 2e-3, 5e-3, 1e-2),
    weight_grid={
        "": (0.05, 0.02, 0.01, 0.005, 0.002, 0.001),
        **dict.fromkeys(("koleo", "vicreg"), (0.01, 0.02, 0.05, 0.1, 0.2, 0.5)),
        **dict.fromkeys(ATOM_MODELING, (0.005, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)),
    },
)
FLOWERS = replace(
    PETS,
    name="flowers",
    title="Flowers",
    summary="ResNet-18 from scratch on Flowers-102",
    settings=ImageSettings(evaluate_every=5),  # it has three times as many test images as others
    build=deferred("atomsep.experiments.images.build:build_flowers"),
)
IMAGENET = replace(
    PETS,
    name="imagenet",
    title="ImageNet-1K",
    summary="ResNet-50 on ImageNet-1K, or any folder of its layout",
    settings=FolderSettings(
        epochs=90,
        batch=256,
        learning_rate=0.1,
        layer="layer1.2.bn3",
        model="resnet50",
        image=224,
        crop_scale=0.08,
        weight_decay=1e-4,
        schedule="thirds",
    ),
    tiny={**TINY, "learning_rate": 0.01},
    build=deferred("atomsep.experiments.images.build:build_imagenet"),
    weights={**WEIGHTS, **dict.fromkeys(ATOM_MODELING, 0.02)},  # 0.2 lost 19 points on Imagenette
)
OWN_IMAGES = replace(
    PETS,
    name="own-images",
    title="Own images",
    summary="any image classifier on your own folder of images",
    settings=FolderSettings(image=224),
    build=deferred("atomsep.experiments.images.build:build_own"),
    check=check_own_images,
)
IMAGES = (PETS, FLOWERS, IMAGENET, OWN_IMAGES)
