"""From the settings of image classification to a classifier with its images."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import nn

from atomsep.experiments.classification import Classification
from atomsep.experiments.errors import ExperimentError
from atomsep.experiments.images.augmentation import DEVIATION, MEAN
from atomsep.experiments.images.corruptions import corruptions
from atomsep.experiments.images.data import read_digits, read_flowers, read_pets
from atomsep.experiments.images.experiments import ImageSettings
from atomsep.experiments.images.feeds import make_feeds
from atomsep.experiments.images.folders import read_imagenet, read_own_images
from atomsep.experiments.images.inputs import ImageInputs
from atomsep.experiments.images.models import check_image_model, make_image_model
from atomsep.experiments.loading import read_sample
from atomsep.experiments.optimisers import make_optimiser
from atomsep.experiments.predicting import Shown
from atomsep.experiments.randomness import seeded
from atomsep.experiments.samples import Sets
from atomsep.experiments.task import Context, Task
from atomsep.experiments.trained import Saved, TrainedClassifier
from atomsep.methods import METHODS


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
    if settings.labels < 1:
        train, _ = train.split(1 - settings.labels, "labels")
    classes = len(train.classes)
    with seeded(context.seed, "initial weights"):
        model = make_network(settings, classes, tiny=context.tiny)
    check_image_model(settings.model, model, settings.image, classes)
    model = model.to(memory_format=torch.channels_last)
    views = 2 if METHODS[context.method].second_view == "augmentation" else 1
    feed, evaluation = make_feeds(context, train, held_out, views)
    return Classification(
        context,
        model,
        sgd_or_adamw(context, model),
        feed,
        evaluation.batches,
        partial(metrics, classes),
        shown=Shown(
            ImageInputs(settings.image, MEAN, DEVIATION),
            partial(read_sample, held_out),
            held_out.labels,
            train.classes,
            held_out.names,
        ),
        schedule=settings.schedule,
        warmup=settings.warmup,
        # A search does not look at them.
        corruptions=corruptions(MEAN, DEVIATION)
        if settings.robustness and not context.validation
        else None,
    )


def make_network(settings: ImageSettings, classes: int, *, tiny: bool) -> nn.Module:
    """The untrained classifier that settings describe."""
    stem, stages = settings.stem, settings.stages
    return make_image_model(settings.model, classes, stem=stem, stages=stages, tiny=tiny)


def load(saved: Saved) -> TrainedClassifier:
    """The trained classifier of a run."""
    settings: ImageSettings = saved.settings
    tiny = saved.result.get("tiny", False)
    model = make_network(settings, len(saved.need("classes")), tiny=tiny)
    model = model.to(memory_format=torch.channels_last)
    model = saved.weights_into(model, "model")
    inputs = ImageInputs(settings.image, **saved.need("normalisation"))
    return TrainedClassifier(saved, model, saved.bound(model), inputs)


build_pets = partial(build, read=read_pets)
build_flowers = partial(build, read=read_flowers)
build_imagenet = partial(build, read=read_imagenet, digits=(96, 64))
build_own = partial(build, read=read_own_images)


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
