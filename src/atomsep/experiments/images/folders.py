"""A user's own images: folders of classes, or data sets that a function returns."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from atomsep.experiments.entry_points import call_entry_point, is_entry_point
from atomsep.experiments.errors import ExperimentError, unknown
from atomsep.experiments.images.data import image_files
from atomsep.experiments.images.experiments import LAYOUT, check_own_images
from atomsep.experiments.samples import Samples, Sets
from atomsep.experiments.task import Context

HELD_OUT = ("val", "test")
TEST_SHARE, VALIDATION_SHARE = 0.2, 0.1


def read_imagenet(context: Context) -> Sets:
    """ImageNet, or another folder of its layout; validation: a tenth of train.

    Raises:
        ExperimentError: the data is missing, or has another layout.
    """
    folder = Path(context.settings.folder or context.data / "imagenet")
    if not folder.exists():
        download = " (--download cannot fetch ImageNet)" if context.download else ""
        raise ExperimentError(
            f"there is no folder {folder}{download}; put ImageNet there as train/CLASS/*.JPEG and "
            f"val/CLASS/*.JPEG, or name another folder with --set folder=FOLDER"
        )
    return read_folder(folder, validation=context.validation)


def read_own_images(context: Context) -> Sets:
    """The images of `folder`, or of the function that it names.

    Raises:
        ExperimentError: `folder` is not set, or does not hold images of classes.
    """
    check_own_images(context.settings)
    folder = context.settings.folder
    if is_entry_point(folder) and not Path(folder).exists():
        return _returned(folder, call_entry_point("folder", folder), context.validation)
    return read_folder(Path(folder), validation=context.validation)


def read_folder(folder: Path, *, validation: bool = False) -> Sets:
    """Folders of classes, in train/ and val/ (or test/), or without these and split 80 to 20.

    Args:
        folder: the folder that holds them.
        validation: hold out a tenth of the training samples instead.

    Raises:
        ExperimentError: the folder has another layout, a class without images, or only one class.
    """
    if not folder.is_dir():
        raise ExperimentError(f"there is no folder {folder}; name one with the layout {LAYOUT}")
    if not any(folder.iterdir()):
        raise ExperimentError(f"the folder {folder} is empty; its layout must be {LAYOUT}")
    if (folder / "train").is_dir():
        train = _read_classes(folder / "train")
        held = next((folder / name for name in HELD_OUT if (folder / name).is_dir()), None)
        if held is None:
            raise ExperimentError(
                f"{folder} has train/ but neither val/ nor test/; its layout must be {LAYOUT}"
            )
        test = _read_classes(held, train.classes)
    else:
        train, test = _read_classes(folder).split(TEST_SHARE, "test")
    return train.with_held_out(test, VALIDATION_SHARE, validation)


def _read_classes(folder: Path, classes: Sequence[str] | None = None) -> Samples:
    """All images of a folder of classes; `classes` are the expected ones."""
    from torchvision.datasets.folder import IMG_EXTENSIONS, make_dataset

    found = sorted(f.name for f in folder.iterdir() if f.is_dir() and not f.name.startswith("."))
    if not found:
        raise ExperimentError(f"{folder} holds no class folders; the layout must be {LAYOUT}")
    for name in found:
        if classes is not None and name not in classes:
            raise unknown(
                "class", name, classes, f"among the training samples, but {folder} has it"
            )
    names = list(classes or found)
    numbers = {name: number for number, name in enumerate(names) if name in found}
    listed = make_dataset(str(folder), numbers, IMG_EXTENSIONS, allow_empty=True)
    empty = [name for name in numbers if numbers[name] not in {label for _, label in listed}]
    if not listed:
        raise ExperimentError(
            f"the class folders of {folder} hold no images ({', '.join(IMG_EXTENSIONS)}); the "
            f"layout must be {LAYOUT}"
        )
    if empty:
        raise ExperimentError(f"{folder / empty[0]} holds no images; fill it or remove it")
    if len(names) < 2:
        raise ExperimentError(
            f"{folder} holds only one class, {names[0]!r}; a classifier needs two"
        )
    files, labels = zip(*listed, strict=True)
    return image_files(files, labels, names)


def _own_samples(dataset: Any, classes: Sequence[str] | None = None) -> Samples:
    """A user's own data set: `dataset[index]` is a Pillow image and its label."""
    targets = getattr(dataset, "targets", None)
    if targets is None:
        targets = [dataset[index][1] for index in range(len(dataset))]
    labels = [int(label) for label in targets]
    own = classes or getattr(dataset, "classes", None)
    known = list(own or map(str, range(max(labels, default=0) + 1)))
    numbers = list(range(len(labels)))
    names = [f"sample {number}" for number in numbers]
    return Samples(numbers, labels, known, names, partial(_image, dataset))


def _image(dataset: Any, index: int) -> Any:
    return dataset[index][0].convert("RGB")


def _returned(entry: str, sets: Any, validation: bool) -> Sets:
    try:
        train = _own_samples(sets[0])
        test = _own_samples(sets[1], train.classes)
        for each in (train, test):
            if len(each):
                each.load(0)
    except Exception as error:  # of a user's data set, which may raise anything
        raise ExperimentError(
            f"folder={entry} must return two data sets, for training and for testing, whose items "
            f"are a Pillow image and a label ({type(error).__name__}: {error})"
        ) from error
    if min(len(train), len(test)) == 0 or len(train.classes) < 2:
        raise ExperimentError(f"folder={entry} must return samples of at least two classes")
    return train.with_held_out(test, VALIDATION_SHARE, validation)
