"""Images to classify: Pets, Flowers, folders of classes, and scikit-learn's digits.

Every reader returns training samples and held-out samples. The held-out ones are the official
test samples or, for searches, a part of the training samples that no run trains on.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from atomsep.experiments.errors import ExperimentError
from atomsep.experiments.samples import Samples, Sets
from atomsep.experiments.task import Context

if TYPE_CHECKING:
    from PIL.Image import Image


def decode(file: Path | str) -> Image:
    """An image file as RGB, fully decoded, so that a damaged file shows here."""
    from PIL import Image

    with Image.open(file) as image:
        return as_rgb(image)


def as_rgb(image: Image) -> Image:
    """A Pillow image in any mode as RGB."""
    # Pillow warns about a palette with transparency unless it is converted by way of RGBA.
    return (image.convert("RGBA") if image.mode == "P" else image).convert("RGB")


def image_files(
    files: Iterable[Path | str], labels: Sequence[int], classes: Sequence[str]
) -> Samples:
    """Image files with their labels."""
    names = list(map(str, files))
    return Samples(names, list(labels), classes, names, decode)


def read_digits(context: Context, train: int, test: int) -> Sets:
    """The embedded data of the tiny forms: scikit-learn's digits, 8 x 8 pixels."""
    from sklearn.datasets import load_digits

    data, count = load_digits(), train + test
    pixels = list((data.images[:count] * 15.9).astype("uint8"))
    names = [f"digit {index}" for index in range(count)]
    classes = [str(name) for name in data.target_names]
    whole = Samples(pixels, data.target[:count].tolist(), classes, names, _as_image)
    training = whole.take(range(train))
    return training.with_held_out(whole.take(range(train, count)), 0.2, context.validation)


def _as_image(pixels: Any) -> Image:
    from PIL import Image

    return Image.fromarray(pixels).convert("RGB")


def read_pets(context: Context) -> Sets:
    """Oxford-IIIT Pets: trainval and test of the official lists; validation: a fifth of trainval.

    Raises:
        ExperimentError: the data is missing, or has another layout.
    """
    from torchvision.datasets import OxfordIIITPet

    layout = "images/ and annotations/ with trainval.txt and test.txt"
    train, test = _of_torchvision(
        context, OxfordIIITPet, ("trainval", "test"), "oxford-iiit-pet", layout, "_images"
    )
    return train.with_held_out(test, 0.2, context.validation)


def read_flowers(context: Context) -> Sets:
    """Flowers-102: official train and val for training, official test; validation: official val.

    Raises:
        ExperimentError: the data is missing, or has another layout.
    """
    from torchvision.datasets import Flowers102

    layout = "jpg/, imagelabels.mat and setid.mat, as published"
    train, val, test = _of_torchvision(
        context, Flowers102, ("train", "val", "test"), "flowers-102", layout, "_image_files"
    )
    return (train, val) if context.validation else (train + val, test)


def _of_torchvision(
    context: Context, kind: Any, splits: Sequence[str], folder: str, layout: str, files: str
) -> list[Samples]:
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
    found = [image_files(getattr(each, files), each._labels, classes) for each in sets]
    for each, split in zip(found, splits, strict=True):
        if not len(each):
            raise ExperimentError(
                f"the {split} list in {place} is empty; remove {place} and use --download"
            )
    return found
