"""Where the images of a run come from: decoded once and kept, or loaded again in every epoch."""

from __future__ import annotations

import warnings
from functools import partial

from atomsep.experiments.cache import DISK, NoRoomError
from atomsep.experiments.errors import ExperimentError
from atomsep.experiments.images.augmentation import Augmentation
from atomsep.experiments.images.decoded import are_files, decode_once
from atomsep.experiments.images.experiments import ImageSettings
from atomsep.experiments.images.resident import ResidentFeed
from atomsep.experiments.loading import LoaderFeed
from atomsep.experiments.samples import Samples
from atomsep.experiments.task import Context

Feeds = tuple[LoaderFeed, LoaderFeed] | tuple[ResidentFeed, ResidentFeed]


def make_feeds(context: Context, train: Samples, held_out: Samples, views: int) -> Feeds:
    """Batches to train on, and batches to evaluate on.

    Args:
        context: context of the run; `data_on` says where to keep the images.
        train: training samples.
        held_out: samples to evaluate on.
        views: 2 to augment every training sample twice.

    Raises:
        ExperimentError: the images cannot be kept where `data_on` says.
    """
    settings: ImageSettings = context.settings
    recipe = Augmentation(
        settings.augmentation, settings.image, settings.crop_scale, settings.stored
    )
    centre = Augmentation("none", settings.image)
    skip, device = settings.unreadable == "skip", context.fabric.device
    if _is_kept(context, train, held_out):
        try:
            keep = partial(
                decode_once,
                folder=context.data / "cache",
                skip_unreadable=skip,
                disk=DISK if context.data_on == "auto" else 1.0,
                progress=context.listener.decoded,
            )
            resident = partial(
                ResidentFeed,
                device=device,
                classes=len(train.classes),
                batch=settings.batch,
                seed=context.seed,
                place=context.data_on,
                shard=context.shard,
            )
            return (
                resident(keep(train, recipe), recipe, views=views),
                resident(keep(held_out, centre), centre, shuffle=False),
            )
        except NoRoomError as error:
            if context.data_on != "auto":
                raise
            warnings.warn(f"images are decoded again in every epoch: {error}", stacklevel=2)
    load = partial(
        LoaderFeed,
        batch=settings.batch,
        seed=context.seed,
        workers=context.workers,
        shard=context.shard,
        skip_unreadable=skip,
        pin_memory=device.type == "cuda",
    )
    return load(train, recipe, views=views), load(held_out, centre, shuffle=False)


def _is_kept(context: Context, *sets: Samples) -> bool:
    """Whether the images are decoded once and kept, if there is room."""
    files = all(map(are_files, sets))
    if context.data_on == "auto":
        # On a CPU the model takes a hundred times as long as Pillow, and Pillow resizes faster
        # than products of matrices do: decoded images would cost disk space and gain nothing.
        return files and context.fabric.device.type != "cpu"
    if context.data_on != "loader" and not files:
        raise ExperimentError(
            f"--data-on {context.data_on} needs image files, and these samples come from a "
            f"function or are embedded; use --data-on loader"
        )
    return context.data_on != "loader"
