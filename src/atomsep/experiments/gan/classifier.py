"""A small classifier of a data set's own labels.

Its features give a Fréchet distance without Inception, and its answers tell the modes of stacked
digits.

It is trained with a fixed seed and kept on disk, so that all runs on one machine use the same
features.
"""

from __future__ import annotations

import hashlib
import os
from contextlib import nullcontext
from pathlib import Path
from pickle import UnpicklingError

import torch
from torch import Tensor, nn
from torch.nn.functional import adaptive_avg_pool2d, cross_entropy

from atomsep.experiments.cache import user_cache
from atomsep.experiments.errors import ExperimentError
from atomsep.experiments.files import CONTINUES, alone, write_state, writing
from atomsep.experiments.gan.pictures import Pictures
from atomsep.experiments.randomness import generator, seeded
from atomsep.experiments.task import Context

BATCH, STEPS, PASSES, RATE = 64, 2000, 8, 2e-3
"""Training: images per step, most steps, most passes over the images, initial rate of Adam."""


class Classifier(nn.Module):
    """A small convolutional network on images of 32 px; its features are the last hidden layer.

    Args:
        classes: number of classes.
    """

    def __init__(self, classes: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for before, after in ((3, 32), (32, 64), (64, 128)):
            convolution = nn.Conv2d(before, after, 3, 2, 1, bias=False)
            layers += [convolution, nn.BatchNorm2d(after), nn.ReLU(inplace=True)]
        self.body = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(2), nn.Flatten())
        self.features = nn.Sequential(nn.Linear(512, 128), nn.ReLU())
        self.head = nn.Linear(128, classes)

    def forward(self, images: Tensor) -> Tensor:
        """Features `(B, 128)` of bytes `(B, 3, H, W)`."""
        # Means over whole blocks: 64 px become 32.
        small = adaptive_avg_pool2d(images.float(), 32)
        features: Tensor = self.features(self.body(small / 127.5 - 1))
        return features


def classifier(
    pictures: Pictures,
    device: torch.device,
    folder: Path | None,
    *,
    steps: int = STEPS,
    shift: int = 0,
) -> Classifier:
    """A classifier of the images, trained with a fixed seed, or read from disk.

    Args:
        pictures: images and labels.
        device: device to train on.
        folder: where to keep it, under a name that depends on images, labels and training; None
            not to keep it. If it cannot be written, the user's cache folder takes its place.
        steps: most steps of the training.
        shift: largest number of pixels by which a batch is shifted at random.

    Raises:
        ExperimentError: the images have no labels, or the file on disk is damaged.
    """
    labels = pictures.labels
    if labels is None:
        raise ExperimentError(
            "features=classifier needs labels: each image in the subfolder of its class, and at "
            "least two classes; otherwise set features=inception"
        )
    with seeded(0, "classifier"):
        model = Classifier(int(labels.max()) + 1)
    if folder is None:
        _train(model, pictures, labels, device, steps, shift)
        return model
    spare = user_cache() / "features"
    how = "" if (steps, shift) == (STEPS, 0) else f"-{steps}-{shift}"
    name = f"classifier-{_digest(pictures.images, labels)}{how}.pt"
    path = next((place / name for place in (folder, spare) if (place / name).exists()), None)
    if path is None:
        path = (folder if _can_write(folder) else spare) / name
    with writing(path, then=CONTINUES):
        path.parent.mkdir(parents=True, exist_ok=True)
    # Other processes of a sweep wait for the first.
    with nullcontext() if path.exists() else alone(path.with_suffix(".lock")):
        if path.exists():
            try:
                model.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))
            except (RuntimeError, UnpicklingError, EOFError) as error:
                raise ExperimentError(
                    f"{path} is damaged; remove it to train the classifier again"
                ) from error
        else:
            _train(model, pictures, labels, device, steps, shift)
            write_state(path, model.cpu().state_dict())
    return model


def _can_write(folder: Path) -> bool:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return False
    return os.access(folder, os.W_OK)


def kept_in(context: Context) -> Path | None:
    """The folder beside a run's data where classifiers are kept; the tiny form keeps none."""
    return None if context.tiny else context.data / "features"


def _train(
    model: Classifier,
    pictures: Pictures,
    labels: Tensor,
    device: torch.device,
    steps: int,
    shift: int,
) -> None:
    """Train with Adam, whose rate falls to 0."""
    count = len(labels)
    steps = min(steps, PASSES * -(-count // BATCH))
    passes = -(-steps * BATCH // count)
    orders = (torch.randperm(count, generator=generator(0, "classifier", n)) for n in range(passes))
    model.to(device).train()
    optimiser = torch.optim.Adam(model.parameters(), lr=RATE)
    shifts = torch.randint(-shift, shift + 1, (steps, 2), generator=generator(0, "shifts")).tolist()
    for step, indices in enumerate(torch.cat(list(orders)).split(BATCH)[:steps]):
        for group in optimiser.param_groups:
            group["lr"] = RATE * (1 - step / steps)
        images = pictures.images[indices].to(device).roll(shifts[step], (2, 3))
        images = images.expand(-1, 3, -1, -1)
        loss = cross_entropy(model.head(model(images)), labels[indices].to(device))
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()


def _digest(*tensors: Tensor) -> str:
    text = hashlib.blake2b(digest_size=8)
    for tensor in tensors:
        text.update(tensor.contiguous().numpy().data)
    return text.hexdigest()
