"""The features of images that a Fréchet distance compares.

The setting `features` selects one of three kinds:

- `inception`: torch-fidelity's InceptionV3, the features of the FID;
- `classifier`: a small network, trained with a fixed seed on the data set's own labels and kept
  on disk beside the data;
- `package.module:function`: a function of yours, called without arguments. It returns a module
  from bytes `(B, 3, H, W)` to features `(B, F)`.

Only a distance over Inception's features is an FID; the others have other names.
"""

from __future__ import annotations

import importlib
import pickle
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from atomsep.experiments.entry_points import is_entry_point, make_module
from atomsep.experiments.errors import ExperimentError
from atomsep.experiments.gan.classifier import classifier, kept_in
from atomsep.experiments.gan.pictures import Pictures
from atomsep.experiments.task import Context

INCEPTION_FILE = "weights-inception-2015-12-05-6726825d.pth"
"""File name of the published weights in torch's cache, as torch-fidelity has it."""

BATCH = 256


@dataclass(frozen=True)
class Features:
    """A feature extractor and its name.

    Attributes:
        name: name of the features, part of the metric's name.
        module: from bytes `(B, 3, H, W)` to features `(B, F)`.
        device: device of the module.
    """

    name: str
    module: nn.Module
    device: torch.device | str = "cpu"

    @property
    def metric(self) -> str:
        """Name of the Fréchet distance over these features.

        Example:
            >>> Features("classifier", nn.Identity()).metric
            'frechet_classifier'
        """
        return "fid" if self.name == "inception" else f"frechet_{self.name}"

    @torch.no_grad()
    def of(self, images: Tensor) -> Tensor:
        """Features `(n, F)` of images as bytes `(n, 1 or 3, H, W)`, on the device.

        Raises:
            ExperimentError: the module does not return one vector per image.
        """
        parts = []
        for batch in images.split(BATCH):
            batch = batch.to(self.device).expand(-1, 3, -1, -1)
            part = self.module(batch)
            if not isinstance(part, Tensor) or part.ndim != 2 or len(part) != len(batch):
                found = tuple(part.shape) if isinstance(part, Tensor) else type(part).__name__
                raise ExperimentError(
                    f"the features {self.name!r} of {len(batch)} images must be a tensor "
                    f"({len(batch)}, F), not {found}"
                )
            parts.append(part.float())
        return torch.cat(parts)


def features_before_images(context: Context) -> Features | None:
    """The features that the settings select; None if they are learned from the images.

    What is missing is then said before a large folder is decoded.

    Raises:
        ExperimentError: they are not available; the message says what to do.
    """
    return None if context.settings.features == "classifier" else find_features(context)


def find_features(context: Context, pictures: Pictures | None = None) -> Features:
    """The features that the settings select, ready to use.

    Args:
        context: context of the run.
        pictures: images that a classifier learns from.

    Raises:
        ExperimentError: they are not available; the message says what to do.
    """
    kind, device = context.settings.features, context.fabric.device
    module: nn.Module
    name = kind
    if kind == "inception":
        module = inception(context.settings.features_weights, context.download)
    elif kind == "classifier":
        assert pictures is not None  # only other features are asked for without images
        module = classifier(pictures, device, kept_in(context))
    elif is_entry_point(kind):
        name, module = kind.partition(":")[2], make_module("features", kind)
    else:
        raise ExperimentError(
            f"features must be inception, classifier or package.module:function, not {kind!r}"
        )
    return Features(name, module.to(device).eval().requires_grad_(False), device)


class _Inception(nn.Module):
    """Torch-fidelity's extractor, which returns a tuple, as a plain module."""

    def __init__(self, extractor: nn.Module) -> None:
        super().__init__()
        self.extractor = extractor

    def forward(self, images: Tensor) -> Tensor:
        [features] = self.extractor(images)
        return torch.as_tensor(features)


def inception(weights: str, download: bool) -> nn.Module:
    """InceptionV3 with the weights of the FID, from bytes `(B, 3, H, W)` to `(B, 2048)`.

    Raises:
        ExperimentError: torch-fidelity or the weights are missing.
    """
    kind = import_fidelity("feature_extractor_inceptionv3").FeatureExtractorInceptionV3
    make = partial(kind, "inception-v3-compat", ["2048"], verbose=False)
    path = Path(weights) if weights else Path(torch.hub.get_dir(), "checkpoints", INCEPTION_FILE)
    if weights and not path.is_file():
        raise ExperimentError(f"there is no file {path}, which features_weights names")
    if not path.is_file():
        if not download:
            raise ExperimentError(
                "an FID needs Inception's weights, which are not on this machine; fetch them with "
                "--download, name a file with --set features_weights=PATH, or use a Fréchet "
                "distance over other features with --set features=classifier"
            )
        try:
            return _Inception(make())
        except OSError as error:
            raise ExperimentError(
                f"Inception's weights cannot be fetched ({error}); check the connection, or name a "
                f"file with --set features_weights=PATH"
            ) from error
    try:
        # torch-fidelity itself would run code that it finds in the file.
        torch.load(path, map_location="cpu", weights_only=True)
        return _Inception(make(feature_extractor_weights_path=str(path)))
    except (RuntimeError, pickle.UnpicklingError, EOFError, TypeError) as error:
        reason = str(error).strip().splitlines()[0]
        raise ExperimentError(
            f"{path} does not hold Inception's weights in torch-fidelity's form ({reason})"
        ) from error


def import_fidelity(name: str) -> Any:
    """Import a module of torch-fidelity.

    Raises:
        ExperimentError: it is not installed.
    """
    try:
        return importlib.import_module(f"torch_fidelity.{name}")
    except ImportError as error:
        raise ExperimentError(
            f"an FID needs torch-fidelity, which cannot be imported ({error}); install it with "
            f"pip install 'atomsep[experiments]'"
        ) from error
