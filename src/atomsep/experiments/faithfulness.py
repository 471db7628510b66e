"""How faithful the maps of a trained image classifier are, on its held-out images."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from atomsep.experiments.atoms_file import spread
from atomsep.experiments.errors import ExperimentError
from atomsep.experiments.images.inputs import ImageInputs
from atomsep.experiments.images.segmentations import read_outlines
from atomsep.experiments.loading import Unreadable
from atomsep.experiments.maps import SIGN, Maps
from atomsep.experiments.registry import find_experiment
from atomsep.experiments.task import Context
from atomsep.experiments.trained import TrainedClassifier, TrainedRun
from atomsep.importance.faithful import area, auc, block_sums, deletion_and_insertion, iou

CURVES, TRUTH = ("deletion", "insertion"), ("auc", "iou")
"""What is measured; the latter only where the truth is known."""

PerMap = dict[str, list[Tensor]]


@dataclass
class Judged:
    """What was measured on each image.

    Attributes:
        shares: share of the tokens that are removed or brought back, `(S,)`.
        values: "deletion" and "insertion" (areas), "auc" and "iou", by map, `(M,)` each; the latter
            two only where the truth is known.
        curves: "deletion" and "insertion" by map, `(M, S)` each.
    """

    shares: Tensor = field(default_factory=lambda: torch.empty(0))
    values: dict[str, dict[str, Tensor]] = field(default_factory=dict)
    curves: dict[str, dict[str, Tensor]] = field(default_factory=dict)


def judge(
    run: TrainedRun,
    data: Path,
    most: int,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Judged:
    """Judge the maps of a run: the charges, Captum's if it is installed, and controls.

    The class is the predicted one. A removed token shows the blurred image. The untrained model is
    the one that the run started from, with the batch norms' statistics of the first images. Runs of
    other methods are judged as well: what feature 0 of their layer gives is then the charge.

    Args:
        run: a run of an image classifier.
        data: folder of the data sets.
        most: number of held-out images, spread over all of them.
        progress: called with the number of images that are done, and of all.

    Raises:
        ExperimentError: the run does not classify images, its data is missing, or its layer's
            tokens are not a grid.
    """
    inputs = run.inputs if isinstance(run, TrainedClassifier) else None
    if not isinstance(run, TrainedClassifier) or not isinstance(inputs, ImageInputs):
        raise ExperimentError(
            f"{run.folder} is a run of {run.experiment}, which does not classify images; name runs "
            f"of pets, flowers, imagenet or own-images"
        )
    task = _task_of(run, data)
    names, images = _held_out(task.shown, most)
    seen = inputs.see(images)
    outlines = read_outlines(names, inputs.transform)
    values: dict[str, PerMap] = {name: {} for name in (*CURVES, *TRUTH)}
    curves: dict[str, PerMap] = {name: {} for name in CURVES}
    shares = torch.empty(0)
    with ExitStack() as hooks:
        maps_of = Maps(run, task.inner.float(), task.on_layer.binding, hooks)
        for numbers, arguments in inputs.batches(seen, run.settings.batch):
            maps = maps_of(arguments.to(run.fabric.device, torch.float32))
            truth = None if outlines is None else tuple(each[list(numbers)] for each in outlines)
            for name, scores in maps.scores.items():
                if truth is not None:
                    counts = (block_sums(each.to(scores), maps.grid) for each in truth)
                    inside, outside = counts
                    _add(values["auc"], name, auc(scores, inside, outside))
                    _add(values["iou"], name, iou(scores, inside, outside))
                if name == SIGN:  # the same order as that of the charge, up to chance
                    continue
                found = deletion_and_insertion(maps.predict, maps.images, maps.blank, scores)
                shares = found.shares.cpu()
                for kind in CURVES:
                    curve = getattr(found, kind)
                    _add(curves[kind], name, curve)
                    _add(values[kind], name, area(found.shares, curve))
            progress(numbers[-1] + 1, len(seen))
    return Judged(shares, _joined(values), _joined(curves))


def _add(found: PerMap, name: str, values: Tensor) -> None:
    found.setdefault(name, []).append(values.cpu())


def _joined(found: Mapping[str, PerMap]) -> dict[str, dict[str, Tensor]]:
    return {
        kind: {name: torch.cat(parts) for name, parts in maps.items()}
        for kind, maps in found.items()
        if maps
    }


def _task_of(run: TrainedClassifier, data: Path) -> Any:
    """The run's task as it was before the training, with its held-out samples."""
    context = Context(
        *(run.settings, run.method, run.seed, run.fabric, data),
        tiny=run.result["tiny"],
        validation=run.result["validation"],
        data_on="loader",
    )
    with torch.random.fork_rng(devices=[]):
        return find_experiment(run.experiment).build(context)


def _held_out(shown: Any, most: int) -> tuple[list[str], list[Any]]:
    """Some held-out images, with their names if these are files."""
    chosen = spread(len(shown.labels), most)
    loaded = [(number, shown.load(number)) for number in chosen]
    readable = [pair for pair in loaded if not isinstance(pair[1], Unreadable)]
    names = [shown.names[number] for number, _ in readable] if shown.names else []
    return names, [image for _, image in readable]
