"""All maps of a trained image classifier for a batch: charges, Captum's maps, and controls."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from atomsep.experiments.errors import ExperimentError
from atomsep.experiments.predicting import first_layer, logits_of
from atomsep.experiments.trained import TrainedClassifier
from atomsep.hooks.attaching import attach
from atomsep.hooks.attachment import Attachment
from atomsep.hooks.targets import find_layers
from atomsep.importance import rivals
from atomsep.importance.images import to_grid

POSITIVE, NEGATIVE, ABSOLUTE = "positive charge", "negative charge", "absolute charge"
SIGN = "sign of the charge"
UNTRAINED = "charge of an untrained model"
RANDOM, CENTRE = "random order", "centre of the image"

BLUR = 0.1
"""Standard deviation of the blur that hides a token, as a share of the image's width."""


@dataclass(frozen=True)
class MapsOfBatch:
    """The maps of a batch of images, and what their faithfulness is measured with.

    Attributes:
        images: the model's inputs, `(M, 3, S, S)`.
        blank: the same, blurred.
        predict: probability of the class that is predicted for the whole image, `(M,)`.
        scores: maps by name, `(M, h, w)` each.
        grid: h and w.
    """

    images: Tensor
    blank: Tensor
    predict: Callable[[Tensor], Tensor]
    scores: dict[str, Tensor]
    grid: tuple[int, int]


class Maps:
    """Computes all maps of batches of images.

    Args:
        run: the trained run.
        untrained: its model before the training.
        binding: the run's method on the untrained model.
        hooks: detaches what is attached here.
    """

    def __init__(
        self, run: TrainedClassifier, untrained: nn.Module, binding: Any, hooks: ExitStack
    ) -> None:
        self.run, self.model, self.untrained = run, run.model.float(), untrained
        self.hooks, self.calibrated = hooks, False
        self.generator = torch.Generator().manual_seed(run.seed)
        self.trained_charges = self._attached(run.model, run.attachment)
        self.untrained_charges = self._attached(untrained, getattr(binding, "attachment", None))

    def _attached(self, model: nn.Module, attachment: Attachment | None) -> Attachment:
        if attachment is None:
            settings = self.run.settings
            attachment = attach(model, settings.layer, layout=settings.layout)
            self.hooks.callback(attachment.detach)
        return attachment

    def __call__(self, images: Tensor) -> MapsOfBatch:
        """The maps of images `(M, 3, S, S)`."""
        from torchvision.transforms.v2.functional import gaussian_blur

        if not self.calibrated:
            calibrate(self.untrained, images)
            self.calibrated = True
        with torch.no_grad():
            labels = logits_of(self.model, images).argmax(1)
            charge = self._charges(self.trained_charges, images)
            logits_of(self.untrained, images)
            untrained = self._charges(self.untrained_charges, images)
        deviation = BLUR * images.shape[-1]
        blank = gaussian_blur(images, [2 * round(2 * deviation) + 1] * 2, [deviation] * 2)
        count, grid = len(images), (charge.shape[1], charge.shape[2])
        scores = {
            POSITIVE: charge,
            NEGATIVE: -charge,
            ABSOLUTE: charge.abs(),
            SIGN: charge.sign(),
            UNTRAINED: untrained,
            RANDOM: rivals.random_map(count, grid, self.generator).to(images),
            CENTRE: rivals.centre_map(count, grid).to(images),
        }

        def logits(changed: Tensor) -> Tensor:
            with self.trained_charges.paused():
                return logits_of(self.model, changed)

        if rivals.has_captum():
            layers = self._cam_layers(images[:1])
            scores |= rivals.captum_maps(self.model, logits, images, blank, labels, layers, grid)

        def predict(changed: Tensor) -> Tensor:
            return logits(changed).softmax(1).gather(1, labels[:, None])[:, 0]

        return MapsOfBatch(images, blank, predict, scores, grid)

    def _charges(self, attachment: Attachment, images: Tensor) -> Tensor:
        size = (images.shape[-2], images.shape[-1])
        try:
            maps = to_grid(first_layer(attachment.importance), size)
        except ValueError as error:
            raise ExperimentError(
                f"the charges of {self.run.folder} are not maps: {error}"
            ) from error
        return torch.from_numpy(maps).to(images)

    def _cam_layers(self, images: Tensor) -> dict[str, nn.Module]:
        """The last layer with a map, and the layer of the charges if it has one."""
        names = rivals.layers_with_maps(self.model, lambda: logits_of(self.model, images))
        own = [name for name in find_layers(self.model, self.run.settings.layer) if name in names]
        chosen = {"Grad-CAM, last layer": names[-1:], "Grad-CAM, same layer": own[:1]}
        return {
            title: self.model.get_submodule(n) for title, found in chosen.items() for n in found
        }


def calibrate(model: nn.Module, images: Tensor) -> None:
    """Give the batch norms of an untrained model the statistics of some images; then eval mode."""
    norms = [each for each in model.modules() if isinstance(each, nn.modules.batchnorm._BatchNorm)]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # the mean over all batches: here, of one
    with torch.no_grad():
        logits_of(model.train(), images)
    model.eval()
