"""Images decoded once, kept on disk as bytes, and mapped by all runs."""

from __future__ import annotations

import json
import os
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from atomsep.experiments.cache import cached_arrays, growing
from atomsep.experiments.images.augmentation import Augmentation
from atomsep.experiments.images.data import decode
from atomsep.experiments.loading import Unreadable, UnreadableSampleError, read_sample
from atomsep.experiments.samples import Samples


@dataclass(frozen=True)
class Decoded:
    """Images of different sizes in one flat array.

    Attributes:
        pixels: all images, bytes; each `(height, 3, width)`.
        images: `(n, 3)`: start in `pixels`, height and width of each image; an unreadable one has
            height 0.
        labels: `(n,)`.
        unreadable: names of the images that could not be read, with the reason, by index.
    """

    pixels: Tensor
    images: Tensor
    labels: Tensor
    unreadable: dict[int, str]


def are_files(samples: Samples) -> bool:
    """Whether the samples are image files, which are the same whenever they are read."""
    return samples.read is decode


def decode_once(
    samples: Samples,
    recipe: Augmentation,
    folder: Path,
    *,
    skip_unreadable: bool = False,
    disk: float = 1.0,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Decoded:
    """Decode image files and prepare them for a recipe, or map what an earlier run decoded.

    Args:
        samples: image files.
        recipe: says how images are prepared.
        folder: where to keep them.
        skip_unreadable: leave out images that cannot be read, instead of stopping.
        disk: share of the free disk space that they may take.
        progress: called with the number of images that are done, and of all.

    Raises:
        UnreadableSampleError: an image cannot be read.
        NoRoomError: there is no room for the decoded images on the disk.
        ExperimentError: the decoded images are damaged.
    """
    import PIL

    central = recipe.is_central
    key: dict[str, Any] = {
        "what": "central images" if central else "images",
        "size": recipe.size if central else recipe.bound,
        "pillow": PIL.__version__,
    }

    def make(part: Path) -> None:
        _write(part, samples, recipe, skip_unreadable, progress)

    side = key["size"]
    # Images of different sizes take less than photographs in the format 3 : 2 would.
    expected = len(samples) * 3 * side * (side if central else side * 3 // 2)
    found = cached_arrays(folder, "images", key, samples.names, make, expected=expected, share=disk)
    unreadable = read_notes(found)
    if unreadable and not skip_unreadable:
        raise UnreadableSampleError.of(next(iter(unreadable.values())))
    return Decoded(found["pixels"], found["images"], torch.tensor(samples.labels), unreadable)


def _write(
    part: Path,
    samples: Samples,
    recipe: Augmentation,
    skip: bool,
    progress: Callable[[int, int], None],
) -> None:
    """Write the arrays, image by image."""

    def read(index: int) -> Any:
        image = read_sample(samples, index)
        if isinstance(image, Unreadable):
            return image
        return np.ascontiguousarray(np.asarray(recipe.prepare(image)).transpose(0, 2, 1))

    images = np.zeros((len(samples), 3), np.int64)
    start, unreadable = 0, {}
    with growing(part / "pixels.npy", (), "uint8") as append:
        for index, pixels in enumerate(ahead(read, len(samples))):
            if isinstance(pixels, Unreadable):
                if not skip or pixels.for_now:  # which would be kept for good
                    raise UnreadableSampleError.of(pixels)
                unreadable[index] = str(pixels)
            else:
                images[index] = start, pixels.shape[0], pixels.shape[2]
                append(pixels.reshape(-1))
                start += pixels.size
            progress(index + 1, len(samples))
    np.save(part / "images.npy", images)
    write_notes(part, unreadable)


def write_notes(part: Path, unreadable: dict[int, str]) -> None:
    """Keep the names of unreadable images, by index, beside the arrays of the others."""
    np.save(part / "unreadable.npy", np.frombuffer(json.dumps(unreadable).encode(), np.uint8))


def read_notes(found: dict[str, Tensor]) -> dict[int, str]:
    """The names of unreadable images, by index."""
    notes = json.loads(bytes(found["unreadable"].numpy()))
    return {int(index): name for index, name in notes.items()}


def ahead(read: Callable[[int], Any], count: int) -> Iterator[Any]:
    """Results of `read` in order, computed by all cores; Pillow decodes without Python's lock."""
    threads = os.cpu_count() or 1
    waiting: deque[Future[Any]] = deque()
    with ThreadPoolExecutor(threads) as pool:
        try:
            for index in range(count):
                waiting.append(pool.submit(read, index))
                if len(waiting) > 4 * threads:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()
