"""Images to classify: Pets, Flowers, folders of classes, and scikit-learn's digits.

Every reader returns training samples and held-out samples. The held-out ones are the official
test samples or, for searches, a part of the training samples that no run trains on.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from atomsep.experiments.errors import ExperimentError
from atomsep.experiments.loading import Samples
from atomsep.experiments.splits import hold_out
from atomsep.experiments.task import Context

if TYPE_CHECKING:
    from PIL.Image import Image

Sets = tuple[Samples, Samples]
"""Training samples and held-out samples."""


def decode(file: Path) -> Image:
    """An image file as RGB, fully decoded, so that a damaged file shows here."""
    from PIL import Image

    with Image.open(file) as image:
        # Pillow warns about a palette with transparency unless it is converted by way of RGBA.
        return (image.convert("RGBA") if image.mode == "P" else image).convert("RGB")


class ImageFiles:
    """Image files with their labels."""

    def __init__(
        self, files: Sequence[Path], labels: Sequence[int], classes: Sequence[str]
    ) -> None:
        self.files, self.labels = list(files), list(labels)
        self.classes: Sequence[str] = classes

    def __len__(self) -> int:
        return len(self.files)

    def load(self, index: int) -> tuple[Image, int]:
        """The decoded image and its label."""
        return decode(self.files[index]), self.labels[index]

    def name(self, index: int) -> str:
        """The image's path."""
        return str(self.files[index])

    def __add__(self, other: ImageFiles) -> ImageFiles:
        files, labels = self.files + other.files, self.labels + other.labels
        return ImageFiles(files, labels, self.classes)


class Digits:
    """Scikit-learn's digits as RGB images of 8 x 8 pixels."""

    def __init__(self, start: int, count: int) -> None:
        from sklearn.datasets import load_digits

        data = load_digits()
        self.images = (data.images[start : start + count] * 15.9).astype("uint8")
        self.labels = data.target[start : start + count].tolist()
        self.classes: Sequence[str] = [str(name) for name in data.target_names]

    def __len__(self) -> int:
        return len(self.labels)

    def load(self, index: int) -> tuple[Image, int]:
        """The image and its label."""
        from PIL import Image

        return Image.fromarray(self.images[index]).convert("RGB"), self.labels[index]

    def name(self, index: int) -> str:
        """The digit's number."""
        return f"digit {index}"


def read_digits(context: Context, train: int, test: int) -> Sets:
    """The embedded data of the tiny forms."""
    samples = Digits(0, train)
    if context.validation:
        return hold_out(samples, samples.labels, 0.2, "validation")
    return samples, Digits(train, test)


def read_pets(context: Context) -> Sets:
    """Oxford-IIIT Pets: trainval and test of the official lists; validation: a fifth of trainval.

    Raises:
        ExperimentError: the data is missing, or has another layout.
    """
    from torchvision.datasets import OxfordIIITPet

    layout = "images/ and annotations/ with trainval.txt and test.txt"
    sets = _of_torchvision(
        context, OxfordIIITPet, ("trainval", "test"), "oxford-iiit-pet", layout, "_images"
    )
    train, test = sets
    if context.validation:
        return hold_out(train, train.labels, 0.2, "validation")
    return train, test


def read_flowers(context: Context) -> Sets:
    """Flowers-102: official train and val for training, official test; validation: official val.

    Raises:
        ExperimentError: the data is missing, or has another layout.
    """
    from torchvision.datasets import Flowers102

    layout = "jpg/, imagelabels.mat and setid.mat, as published"
    sets = _of_torchvision(
        context, Flowers102, ("train", "val", "test"), "flowers-102", layout, "_image_files"
    )
    train, val, test = sets
    return (train, val) if context.validation else (train + val, test)


def _of_torchvision(
    context: Context, kind: Any, splits: Sequence[str], folder: str, layout: str, files: str
) -> list[ImageFiles]:
    """The official splits of a data set of torchvision in the data folder."""
    place = context.data / folder
    try:
        with context.fabric.rank_zero_first():
            sets = [
                kind(str(context.data), split=split, download=context.download) for split in splits
            ]
    except (RuntimeError, OSError, ValueError, KeyError) as error:
        if context.download:
            raise ExperimentError(
                f"{kind.__name__} cannot be fetched into {place} ({error}); check the network and "
                f"the disk, and remove partly unpacked files"
            ) from error
        if not place.exists():
            raise ExperimentError(
                f"there is no folder {place}; fetch {kind.__name__} with --download, or name the "
                f"folder that holds {folder}/ with --data"
            ) from error
        raise ExperimentError(
            f"{place} does not hold {layout} ({error}); remove it and use --download"
        ) from error
    classes = getattr(sets[0], "classes", None)
    if classes is None:  # older versions of torchvision have no names of flowers
        classes = [str(label) for label in range(max(sets[0]._labels, default=0) + 1)]
    found = [ImageFiles(getattr(each, files), each._labels, classes) for each in sets]
    for each, split in zip(found, splits, strict=True):
        if not len(each):
            raise ExperimentError(
                f"the {split} list in {place} is empty; remove {place} and use --download"
            )
    return found
