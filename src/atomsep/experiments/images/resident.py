"""Batches of decoded images, cut and augmented on the device."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import torch
from torch import Tensor

from atomsep.experiments.images.augmentation import Augmentation
from atomsep.experiments.images.batched import change_batch, cut_out, windows
from atomsep.experiments.images.decoded import Decoded
from atomsep.experiments.loading import (
    ALONE,
    VIEWS,
    Batch,
    Shard,
    UnreadableSampleError,
    batches_in_order,
    check_labels,
    epoch_batches,
)
from atomsep.experiments.machine import move_if_it_fits
from atomsep.experiments.prefetching import prefetched

MOST = 2**23
"""Bytes of windows that are cut out and resized at once: their indices take eight times that."""


class ResidentFeed:
    """Batches of decoded images, the same as a `LoaderFeed` gives, up to rounding.

    What is drawn for an epoch is moved to the device at its start. A step then needs nothing from
    the host, if the images are on the device; otherwise a thread cuts out the next batches and
    sends them.

    Args:
        decoded: the images.
        recipe: their augmentation.
        device: the device of the training.
        place: "auto", "device" or "host"; see `place_for`.
        classes: number of classes.
        views: 2 to augment every sample twice.
        shuffle: False for evaluation: every sample once, in the order of the data set.

    Raises:
        ExperimentError: a label is not one of the classes, or the images do not fit.
    """

    def __init__(
        self,
        decoded: Decoded,
        recipe: Augmentation,
        *,
        device: torch.device,
        classes: int,
        batch: int,
        seed: int,
        place: str = "auto",
        shard: Shard = ALONE,
        views: int = 1,
        shuffle: bool = True,
    ) -> None:
        check_labels(decoded.labels, classes)
        self.decoded, self.recipe, self.device, self.seed = decoded, recipe, device, seed
        self.batch, self.shard, self.shuffle, self.views = batch, shard, shuffle, VIEWS[:views]
        self.steps = len(self._parts(0))
        self.pixels, home = move_if_it_fits(
            decoded.pixels.to, decoded.pixels.numel(), place, device
        )
        self.on_device = home == "device"

    def _parts(self, epoch: int) -> list[Tensor]:
        count = len(self.decoded.labels)
        if self.shuffle:
            return epoch_batches(count, self.batch, self.seed, epoch, self.shard)
        return batches_in_order(count, self.batch, self.shard)

    def batches(self, epoch: int = 0, start: int = 0) -> Iterator[Batch]:
        """The batches of an epoch, starting with batch number `start`.

        Raises:
            UnreadableSampleError: none of the samples of a batch can be read.
        """
        names, kept = [], []
        for part in self._parts(epoch)[start:]:
            names.append(self._unreadable(part))
            kept.append(part[self.decoded.images[part, 1] > 0])
            if not len(kept[-1]):
                raise UnreadableSampleError.of_batch(names[-1])
        if not kept:  # a run that continues at the end of an epoch
            return
        order = torch.cat(kept)
        ends = torch.tensor([0, *map(len, kept)]).cumsum(0).tolist()
        rows = [slice(*each) for each in pairwise(ends)]
        views = [_View(self, view, epoch, order) for view in self.views]
        labels = self.decoded.labels[order].to(self.device)
        cuts: Iterator[list[list[Tensor]]] = ([v.cut(each) for v in views] for each in rows)
        if self.device.type == "cuda" and not self.on_device:
            cuts = prefetched(cuts)
        for own, cut, unreadable in zip(rows, cuts, names, strict=True):
            inputs = [view.change(own, each) for view, each in zip(views, cut, strict=True)]
            yield Batch(inputs[0], labels[own], inputs[1] if inputs[1:] else None, unreadable)

    def _unreadable(self, part: Tensor) -> tuple[str, ...]:
        found = self.decoded.unreadable
        return tuple(found[index] for index in part.tolist() if index in found) if found else ()


class _View:
    """A view of the samples in an epoch, in the epoch's order: what is drawn, and how it is cut."""

    def __init__(self, feed: ResidentFeed, purpose: str, epoch: int, order: Tensor) -> None:
        self.feed, images = feed, feed.decoded.images[order]
        key = feed.seed, purpose, epoch
        self.draws = feed.recipe.draw(key, order, images[:, 1], images[:, 2])
        self.there = self.draws.to(feed.device)
        self.images = images.to(feed.device) if feed.on_device else images

    def cut(self, rows: slice) -> list[Tensor]:
        """The windows of a batch, in pieces."""
        feed, extent = self.feed, self._extent(rows)
        if feed.on_device:
            return [
                windows(feed.pixels, self.images[piece], self.there.box[piece], extent)
                for piece in _pieces(rows, extent)
            ]
        pin = feed.device.type == "cuda"
        return [
            cut_out(feed.pixels, self.images[piece], self.draws.box[piece], extent, pin)
            for piece in _pieces(rows, extent)
        ]

    def change(self, rows: slice, pieces: list[Tensor]) -> Tensor:
        """The augmented images of a batch."""
        feed, places = self.feed, _pieces(rows, self._extent(rows))
        changed = [
            change_batch(
                crops.to(feed.device, non_blocking=True), self.there.rows(place), feed.recipe.size
            )
            for crops, place in zip(pieces, places, strict=True)
        ]
        return changed[0] if len(changed) == 1 else torch.cat(changed)

    def _extent(self, rows: slice) -> tuple[int, int]:
        """Height and width of the windows, from the host's copy: the device is not waited for."""
        tall, wide = self.draws.box[rows, 2:].amax(0).tolist()
        return tall, wide


def _pieces(rows: slice, extent: tuple[int, int]) -> list[slice]:
    """Divide a batch so that the windows of each piece are not too large."""
    step = max(1, MOST // (3 * extent[0] * extent[1]))
    starts = range(rows.start, rows.stop, step)
    return [slice(start, min(start + step, rows.stop)) for start in starts]
