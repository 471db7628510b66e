"""Untrained image classifiers: torchvision's by name, or a user's own."""

from __future__ import annotations

import warnings

import torch
from torch import nn

from atomsep.experiments.entry_points import is_entry_point, make_module
from atomsep.experiments.errors import ExperimentError, unknown
from atomsep.experiments.images.experiments import STAGES, STEMS, TINY


def make_image_model(
    name: str, classes: int, *, stem: str = "imagenet", stages: int = STAGES, tiny: bool = False
) -> nn.Module:
    """A classifier with fresh weights.

    Args:
        name: name of a torchvision model, or `package.module:function`, which is called with
            `num_classes` and returns a module.
        classes: number of classes.
        stem: "cifar" gives a ResNet that starts with a 3 x 3 convolution of stride 1 and no
            pooling, for small images.
        stages: number of stages of a ResNet to keep, from the first.
        tiny: whether the run is of the tiny form, whose own number of stages is for ResNets alone.

    Raises:
        ExperimentError: there is no such model, or it is not a ResNet and `stem` or `stages` are
            set.

    Example:
        >>> make_image_model("resnet18", 10, stem="cifar").conv1.stride
        (1, 1)
    """
    from torchvision.models import ResNet

    if is_entry_point(name):
        model = make_module("model", name, num_classes=classes)
    else:
        model = _of_torchvision(name, classes)
    of_form = TINY["stages"] if tiny and not isinstance(model, ResNet) else STAGES
    if (stem, stages) not in ((STEMS[0], STAGES), (STEMS[0], of_form)):
        _change_resnet(name, model, classes, stem, stages)
    return model


def _of_torchvision(name: str, classes: int) -> nn.Module:
    from torchvision import models

    names = models.list_models(module=models)
    if name not in names:
        raise unknown("model", name, names, "in torchvision")
    with warnings.catch_warnings():
        # Two old models announce that their initialisation will change.
        warnings.simplefilter("ignore", FutureWarning)
        model: nn.Module = models.get_model(name, weights=None, num_classes=classes)
    return model


def _change_resnet(name: str, model: nn.Module, classes: int, stem: str, stages: int) -> None:
    from torchvision.models import ResNet

    if not isinstance(model, ResNet):
        raise ExperimentError(
            f"stem and stages apply only to torchvision's ResNets, and model={name} is not one; do "
            f"not set them"
        )
    if stem == "cifar":
        model.conv1 = nn.Conv2d(3, model.conv1.out_channels, 3, padding=1, bias=False)
        nn.init.kaiming_normal_(model.conv1.weight, mode="fan_out", nonlinearity="relu")
        model.maxpool = nn.Identity()
    if stages < STAGES:
        for stage in range(stages, STAGES):
            setattr(model, f"layer{stage + 1}", nn.Identity())
        last = getattr(model, f"layer{stages}")[-1]
        norms = [module for module in last.children() if isinstance(module, nn.BatchNorm2d)]
        model.fc = nn.Linear(norms[-1].num_features, classes)


def check_image_model(name: str, model: nn.Module, image: int, classes: int) -> None:
    """Run the model once, without side effects, so that what does not fit shows at the start.

    Raises:
        ExperimentError: the model cannot take such images, or does not return one number per
            class.
    """
    training = model.training
    try:
        with torch.no_grad():
            output = model.eval()(torch.zeros(2, 3, image, image))
    except Exception as error:  # of a user's model, which may raise anything
        hint = "; try larger ones: --set image=224" if image < 224 else ""
        raise ExperimentError(
            f"model={name} cannot take images of {image} x {image} pixels ({error}){hint}"
        ) from error
    finally:
        model.train(training)
    logits = getattr(output, "logits", output)
    shape = tuple(getattr(logits, "shape", ()))
    if shape != (2, classes):
        raise ExperimentError(
            f"model={name} returns {shape or type(logits).__name__} for 2 images, but must return "
            f"one number for each of the {classes} classes"
        )
