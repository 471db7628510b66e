"""From the settings of image classification to a classifier with its images."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import nn

from atomsep.experiments.classification import Classification
from atomsep.experiments.errors import ExperimentError
from atomsep.experiments.images.corruptions import corruptions
from atomsep.experiments.images.data import read_digits, read_flowers, read_pets
from atomsep.experiments.images.experiments import ImageSettings
from atomsep.experiments.images.folders import read_imagenet, read_own_images
from atomsep.experiments.images.models import check_image_model, make_image_model
from atomsep.experiments.loading import LoaderFeed
from atomsep.experiments.optimisers import make_optimiser
from atomsep.experiments.randomness import seeded
from atomsep.experiments.samples import Sets
from atomsep.experiments.task import Context, Task
from atomsep.methods import METHODS

MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def build(
    context: Context, read: Callable[[Context], Sets], digits: tuple[int, int] = (192, 64)
) -> Task:
    """A classifier with its images.

    Args:
        context: context of the run.
        read: reads the images.
        digits: number of training and test samples in the tiny form.
    """
    settings: ImageSettings = context.settings
    if context.tiny and getattr(settings, "folder", None):
        raise ExperimentError("--tiny trains on embedded images; omit either --tiny or folder=…")
    train, held_out = read_digits(context, *digits) if context.tiny else read(context)
    classes, cuda = len(train.classes), context.fabric.device.type == "cuda"
    with seeded(context.seed, "initial weights"):
        model = make_image_model(
            settings.model, classes, stem=settings.stem, stages=settings.stages
        )
    check_image_model(settings.model, model, settings.image, classes)
    if cuda:
        model = model.to(memory_format=torch.channels_last)
    load = partial(
        LoaderFeed,
        batch=settings.batch,
        seed=context.seed,
        workers=context.workers,
        shard=context.shard,
        skip_unreadable=settings.unreadable == "skip",
        pin_memory=cuda,
    )
    views = 2 if METHODS[context.method].second_view == "augmentation" else 1
    feed = load(train, augmentation(settings), views=views)
    return Classification(
        context,
        model,
        sgd_or_adamw(context, model),
        feed,
        load(held_out, central(settings), shuffle=False).batches,
        partial(metrics, classes),
        schedule=settings.schedule,
        warmup=settings.warmup,
        # A search does not look at them.
        corruptions=corruptions(MEAN, DEVIATION)
        if settings.robustness and not context.validation
        else None,
    )


build_pets = partial(build, read=read_pets)
build_flowers = partial(build, read=read_flowers)
build_imagenet = partial(build, read=read_imagenet, digits=(96, 64))
build_own = partial(build, read=read_own_images)


def augmentation(settings: ImageSettings) -> Callable[[Any], Any]:
    """From a Pillow image to a randomly augmented tensor `(3, image, image)`.

    Raises:
        ExperimentError: `crop_scale` is not a share of the area.
    """
    from torchvision.transforms import v2

    if not 0 < settings.crop_scale <= 1:
        raise ExperimentError(f"crop_scale must lie in (0, 1], not {settings.crop_scale}")
    steps = [
        v2.RandomResizedCrop(settings.image, scale=(settings.crop_scale, 1.0)),
        v2.RandomHorizontalFlip(),
    ]
    if settings.augmentation == "crop-flip-colour":
        steps += [
            v2.RandomApply([v2.ColorJitter(0.4, 0.4, 0.4, 0.1)], p=0.8),
            v2.RandomGrayscale(p=0.2),
        ]
    augment: Callable[[Any], Any] = v2.Compose([*steps, *_to_tensor()])
    return augment


def central(settings: ImageSettings) -> Callable[[Any], Any]:
    """From a Pillow image to the tensor `(3, image, image)` of its centre."""
    from torchvision.transforms import v2

    resize = v2.Resize(round(settings.image * 256 / 224))
    crop: Callable[[Any], Any] = v2.Compose([resize, v2.CenterCrop(settings.image), *_to_tensor()])
    return crop


def _to_tensor() -> list[Any]:
    from torchvision.transforms import v2

    return [v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, DEVIATION)]


def sgd_or_adamw(context: Context, model: nn.Module) -> torch.optim.Optimizer:
    """SGD with momentum, or AdamW, as the settings say."""
    settings, parameters = context.settings, model.parameters()
    decay, momentum = settings.weight_decay, settings.momentum
    if settings.optimiser == "adamw":
        return make_optimiser(torch.optim.AdamW, parameters, context, weight_decay=decay)
    return make_optimiser(
        torch.optim.SGD, parameters, context, momentum=momentum, weight_decay=decay
    )


def metrics(classes: int) -> Mapping[str, Any]:
    """Top-1 and top-5 accuracy, the mean entropy of the predictions, and their calibration."""
    from torchmetrics.classification import MulticlassAccuracy

    from atomsep.experiments.metrics import PredictionEntropy, calibration

    found: dict[str, Any] = {"top1": MulticlassAccuracy(classes, average="micro")}
    if classes > 5:
        found["top5"] = MulticlassAccuracy(classes, top_k=5, average="micro")
    return {**found, "entropy": PredictionEntropy(), **calibration(classes)}
