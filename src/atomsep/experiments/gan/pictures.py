"""The training images of the GANs: read once, resized as in the example, kept as bytes.

Every image is brought to 64 px, or to the side that is set, as in the example (Pillow's bilinear
resize of the shorter side, then the centre) and kept in `data/cache`, for all runs. A step then
indexes one tensor on the training device, and needs no loading processes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from atomsep.experiments.cache import DISK, NoRoomError, cached_arrays, growing
from atomsep.experiments.errors import ExperimentError
from atomsep.experiments.gan.dcgan import SIDE
from atomsep.experiments.images.decoded import ahead, read_notes, write_notes
from atomsep.experiments.loading import Unreadable, UnreadableSampleError, read_sample
from atomsep.experiments.samples import Samples

SUFFIXES = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".ppm", ".pgm", ".tif", ".tiff", ".webp"}


@dataclass(frozen=True)
class Pictures:
    """A data set of images in memory.

    Attributes:
        images: `(n, channels, side, side)`, bytes.
        labels: `(n,)`, or None where the images have none.
        unreadable: names of files that were left out because they could not be read, with the
            reason.
    """

    images: Tensor
    labels: Tensor | None
    unreadable: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.images)

    @property
    def nbytes(self) -> int:
        """Bytes of all images."""
        return self.images.nbytes

    def to(self, device: torch.device) -> Pictures:
        """The images on a device."""
        return replace(self, images=self.images.to(device))

    def batch(self, indices: Tensor) -> Tensor:
        """Some of the images, `(M, channels, side, side)`."""
        return self.images[indices]

    def take(self, indices: Tensor) -> Pictures:
        """A subset of the images."""
        labels = None if self.labels is None else self.labels[indices]
        return Pictures(self.images[indices], labels, self.unreadable)


def normalise(images: Tensor) -> Tensor:
    """From bytes to [-1, 1], with the example's arithmetic.

    Example:
        >>> normalise(torch.tensor([0, 255], dtype=torch.uint8))
        tensor([-1.,  1.])
    """
    return images.float().div(255).sub(0.5).div(0.5)


def as_bytes(images: Tensor) -> Tensor:
    """From [-1, 1] to bytes, rounded.

    Example:
        >>> as_bytes(torch.tensor([-1.0, 0.0, 1.0]))
        tensor([  0, 128, 255], dtype=torch.uint8)
    """
    return images.float().mul(0.5).add(0.5).mul(255).add(0.5).clamp(0, 255).to(torch.uint8)


def mnist(data: Path, download: bool, part: str = "train") -> Pictures:
    """The images of MNIST, from `data/mnist` in torchvision's layout.

    Args:
        data: folder of the data sets.
        download: whether to fetch them if they are missing.
        part: "train", 60,000 images; or "test", 10,000.

    Raises:
        ExperimentError: they are missing, or torchvision cannot read them.
    """
    return _standard("MNIST", data / "mnist", download, 1, part)


def has_test_images(root: Path) -> bool:
    """Whether a folder has test images: a copy of the training images as arrays may lack them."""
    return (root / "test.npz").exists() or not (root / "train.npz").exists()


def cifar10(data: Path, download: bool) -> Pictures:
    """The 50,000 training images of CIFAR-10, from `data/cifar10` in torchvision's layout.

    Raises:
        ExperimentError: they are missing, or torchvision cannot read them.
    """
    return _standard("CIFAR10", data / "cifar10", download, 3, "train")


def _standard(kind: str, root: Path, download: bool, channels: int, part: str) -> Pictures:
    """A data set of torchvision, or a copy of it in `train.npz`, as arrays of images and labels."""
    copy = root / f"{part}.npz"
    if copy.exists():
        pixels, labels = _arrays(copy)
        sources = [copy]
    else:
        pixels, labels = _torchvision(kind, root, download, part)
        sources = sorted(path for path in root.rglob("*") if path.is_file())

    def make(place: Path) -> None:
        import numpy as np

        np.save(place / "images.npy", resize(pixels, channels).numpy())

    key = {"kind": kind, "part": part, "channels": channels, "side": SIDE}
    try:
        images = cached_arrays(root.parent / "cache", root.name, key, sources, make)["images"]
    except NoRoomError:
        images = resize(pixels, channels)
    return Pictures(images, torch.as_tensor(labels, dtype=torch.int64))


def _torchvision(kind: str, root: Path, download: bool, part: str) -> tuple[Any, Any]:
    """Images as an array of bytes, and labels."""
    from torchvision import datasets

    try:
        stored = getattr(datasets, kind)(str(root), train=part == "train", download=download)
    except (RuntimeError, OSError, ValueError) as error:
        if download:
            raise ExperimentError(
                f"{kind} cannot be fetched into {root} ({error}); check the connection, or put the "
                f"data there yourself"
            ) from error
        raise ExperimentError(
            f"{kind} is not in {root}, or is damaged; fetch it with --download, or name the folder "
            f"that holds {root.name}/ with --data"
        ) from error
    pixels = stored.data.numpy() if isinstance(stored.data, Tensor) else stored.data
    return pixels, stored.targets


def _arrays(path: Path) -> tuple[Any, Any]:
    import numpy as np

    try:
        with np.load(path) as file:
            pixels, labels = file["images"], file["labels"]
    except (OSError, ValueError, KeyError) as error:
        raise ExperimentError(
            f"{path} cannot be read ({error}); it must hold the arrays images, (n, height, width) "
            f"or (n, height, width, 3) as bytes, and labels, (n,)"
        ) from None
    if pixels.dtype != np.uint8 or pixels.ndim not in (3, 4) or len(pixels) != len(labels):
        raise ExperimentError(
            f"{path} holds images of shape {pixels.shape} and type {pixels.dtype}, and "
            f"{len(labels)} labels; it must hold bytes, and one label per image"
        )
    return pixels, labels


@cache
def digits(channels: int, side: int = SIDE) -> Pictures:
    """Scikit-learn's 1,797 handwritten digits, for tiny runs."""
    import numpy as np
    from sklearn.datasets import load_digits

    values, labels = load_digits(return_X_y=True)
    pixels = np.round(values.reshape(-1, 8, 8) * (255 / 16)).astype(np.uint8)
    return Pictures(resize(pixels, channels, side), torch.from_numpy(labels.astype(np.int64)))


def folder(
    path: Path, channels: int, cache_folder: Path, skip_unreadable: bool = False, side: int = SIDE
) -> Pictures:
    """All images under a folder; if all are in subfolders, those are their classes.

    Args:
        path: the folder.
        channels: 1 for grey images, 3 for colour.
        cache_folder: where to keep the resized images.
        skip_unreadable: leave out files that cannot be read, instead of stopping.
        side: height and width to bring them to.

    Raises:
        ExperimentError: there is no such folder, or no image in it.
        UnreadableSampleError: an image cannot be read.
    """
    import PIL

    if not path.is_dir():
        raise ExperimentError(
            f"there is no folder {path}; name the folder of the images with --set folder=PATH"
        )
    files = sorted(file for file in path.rglob("*") if file.suffix.lower() in SUFFIXES)
    if not files:
        raise ExperimentError(f"{path} cannot be trained on: it holds no image")
    unreadable: dict[int, str] = {}

    def decoded() -> Iterator[Any]:
        unreadable.clear()
        yield from _decoded(files, channels, side, skip_unreadable, unreadable)
        if len(unreadable) == len(files):
            raise ExperimentError(
                f"{path} cannot be trained on: none of its {len(files)} images can be read"
            )

    shape = (channels, side, side)

    def make(place: Path) -> None:
        with growing(place / "images.npy", shape, "uint8") as append:
            for image in decoded():
                append(image[None])
        write_notes(place, unreadable)

    key = {"what": "pictures", "channels": channels, "side": side, "pillow": PIL.__version__}
    expected = len(files) * math.prod(shape)
    try:
        found = cached_arrays(
            cache_folder, "pictures", key, files, make, expected=expected, share=DISK
        )
        images, unreadable = found["images"], read_notes(found)
    except NoRoomError:
        import numpy as np

        images = torch.from_numpy(np.fromiter(decoded(), np.dtype((np.uint8, shape))))
    if unreadable and not skip_unreadable:  # an earlier run left them out
        raise UnreadableSampleError.of(next(iter(unreadable.values())))
    kept = [file for index, file in enumerate(files) if index not in unreadable]
    return Pictures(images, _classes(path, kept), tuple(unreadable.values()))


def _decoded(
    files: list[Path], channels: int, side: int, skip: bool, unreadable: dict[int, str]
) -> Iterator[Any]:
    """The images as arrays `(channels, side, side)`; notes which files cannot be read."""
    from PIL import Image

    def read(file: Path) -> Any:
        with Image.open(file) as image:
            return _resized(image, channels, side).numpy()

    samples = Samples(files, [0] * len(files), [""], list(map(str, files)), read)
    for index, image in enumerate(ahead(partial(read_sample, samples), len(files))):
        if not isinstance(image, Unreadable):
            yield image
        elif not skip or image.for_now:  # which would be kept for good
            raise UnreadableSampleError.of(image)
        else:
            unreadable[index] = str(image)


def _classes(root: Path, files: list[Path]) -> Tensor | None:
    names = [file.relative_to(root).parts[0] for file in files if file.parent != root]
    known = {name: number for number, name in enumerate(sorted(set(names)))}
    if len(names) < len(files) or len(known) < 2:
        return None
    return torch.tensor([known[name] for name in names])


def resize(pixels: Iterable[Any], channels: int, side: int = SIDE) -> Tensor:
    """Images `(n, channels, side, side)` from arrays `(height, width[, 3])` of bytes."""
    from PIL import Image

    return torch.stack([_resized(Image.fromarray(array), channels, side) for array in pixels])


def _resized(image: Any, channels: int, side: int) -> Tensor:
    """An image after the example's `Resize` and `CenterCrop`, `(channels, side, side)`."""
    from torchvision.transforms import functional

    image = functional.resize(image.convert("L" if channels == 1 else "RGB"), [side])
    pixels: Tensor = functional.pil_to_tensor(functional.center_crop(image, [side]))
    return pixels
