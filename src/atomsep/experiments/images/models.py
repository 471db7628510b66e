"""Image classifiers from scratch: torchvision's by name, or a user's own."""

from __future__ import annotations

import warnings

import torch
from torch import nn

from atomsep.experiments.entry_points import is_entry_point, load_entry_point
from atomsep.experiments.errors import ExperimentError, unknown

STEMS = ("imagenet", "cifar")
STAGES = 4


def make_image_model(
    name: str, classes: int, *, stem: str = "imagenet", stages: int = STAGES
) -> nn.Module:
    """A classifier with fresh weights.

    Args:
        name: of a model of torchvision, or `package.module:function`, which is called with
            `num_classes` and returns a module.
        classes: number of them.
        stem: "cifar" gives a ResNet that starts with a 3 x 3 convolution of stride 1 and no
            pooling, for small images.
        stages: of a ResNet that are kept, from the first.

    Raises:
        ExperimentError: there is no such model, or it is no ResNet and its stem or its stages
            were to change.

    Example:
        >>> make_image_model("resnet18", 10, stem="cifar").conv1.stride
        (1, 1)
    """
    model = _own(name, classes) if is_entry_point(name) else _of_torchvision(name, classes)
    if (stem, stages) != (STEMS[0], STAGES):
        _change_resnet(name, model, classes, stem, stages)
    return model


def _of_torchvision(name: str, classes: int) -> nn.Module:
    from torchvision import models

    names = models.list_models(module=models)
    if name not in names:
        raise unknown("model", name, names, "in torchvision")
    with warnings.catch_warnings():
        # two old models announce that their initialisation will change
        warnings.simplefilter("ignore", FutureWarning)
        model: nn.Module = models.get_model(name, weights=None, num_classes=classes)
    return model


def _own(name: str, classes: int) -> nn.Module:
    model = load_entry_point("model", name)(num_classes=classes)
    if not isinstance(model, nn.Module):
        raise ExperimentError(
            f"model={name} returned {type(model).__name__}; it must return a torch.nn.Module"
        )
    return model


def _change_resnet(name: str, model: nn.Module, classes: int, stem: str, stages: int) -> None:
    from torchvision.models import ResNet

    if not isinstance(model, ResNet):
        raise ExperimentError(
            f"stem and stages are of torchvision's ResNets, and model={name} is none; leave them "
            f"as they are"
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
    """Run the model once, without a trace, so that what does not fit shows at the start.

    Raises:
        ExperimentError: the image is too small for the model, or the model's output is not one
            number a class.
    """
    training = model.training
    try:
        with torch.no_grad():
            output = model.eval()(torch.zeros(2, 3, image, image))
    except (RuntimeError, ValueError, AssertionError) as error:
        raise ExperimentError(
            f"model={name} cannot take images of {image} x {image} pixels ({error}); try a larger "
            f"one, --set image=224"
        ) from error
    finally:
        model.train(training)
    logits = getattr(output, "logits", output)
    shape = tuple(getattr(logits, "shape", ()))
    if shape != (2, classes):
        raise ExperimentError(
            f"model={name} returns {shape or type(logits).__name__} for 2 images, but must return "
            f"one number for each of {classes} classes"
        )
