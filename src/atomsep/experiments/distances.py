"""How far apart the samples are in the latent space: at the start, half way and at the end.

`distances.npz` in a run's folder holds the distribution of atomic distances over some held-out or
generated samples, always the same, at these three moments: 500 quantiles of each. Every method is
measured alike: on the layer that the experiment's methods act on, with feature 0 as the charge and
the others as the position.
"""

from __future__ import annotations

import warnings
import zipfile
from collections.abc import Callable, Iterable
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from atomsep.experiments.errors import ExperimentError
from atomsep.experiments.files import CONTINUES, replacing, writing
from atomsep.functional import form_atoms, nuclear_distance
from atomsep.hooks.reader import LayerReader
from atomsep.hooks.targets import find_layers
from atomsep.hooks.watch import AtomWarning

if TYPE_CHECKING:
    from atomsep.experiments.task import Task

NAME = "distances.npz"

MOMENTS = ("start", "half", "end")
"""When distances are recorded."""

SAMPLES, QUANTILES = 128, 500
"""Samples that are compared at most (8,128 pairs), and numbers that are kept of their distances."""


@torch.no_grad()
def measure_distances(
    model: nn.Module, settings: Any, batches: Iterable[Any], forward: Callable[[Any], Any]
) -> Tensor | None:
    """Quantiles of the distances between the nuclei of all pairs of samples, `(500,)`.

    They are at 0.001, 0.003, ..., 0.999, so each stands for as many pairs as any other.

    Args:
        model: the model, whose hooks are as before afterwards.
        settings: names the layer and its layout; of several layers, the first counts.
        batches: at most the first 128 samples count.
        forward: runs the model on a batch.

    Returns:
        The quantiles; None if the layer has no tokens, or there are no two samples.
    """
    try:
        name, layer = next(iter(find_layers(model, settings.layer).items()))
        reader = LayerReader(model, name, layer, settings.layout)
    except (AttributeError, TypeError, ValueError):  # nobody asked a plain run for such a layer
        return None
    nuclei: list[Tensor] = []

    def read(module: nn.Module, args: Any, output: Any) -> None:
        with suppress(TypeError, ValueError):  # no tokens, or which they are is not certain
            latent = reader.pick(output)[1].detach()
            layout = reader.layout(latent, args)
            mask = reader.mask(layout, latent)
            nuclei.append(form_atoms(layout.tokens(latent).float(), mask=mask).nucleus)

    reader.listen(read)
    found: list[Tensor] = []
    # A compiled model does not see the hook. (The compiler is slow to import.)
    compiled = getattr(settings, "compile", False)
    try:
        stance = torch.compiler.set_stance("force_eager") if compiled else nullcontext()
        with stance, warnings.catch_warnings():
            warnings.simplefilter("ignore", AtomWarning)  # the training's own hook gives it
            for batch in batches:
                forward(batch)
                found += nuclei[-1:]
                nuclei.clear()
                if not found or sum(map(len, found)) >= SAMPLES:
                    break
    finally:
        reader.remove()
    if sum(map(len, found)) < 2:
        return None
    places = torch.cat(found)[:SAMPLES]
    rows, columns = torch.triu_indices(len(places), len(places), offset=1, device=places.device)
    distances = nuclear_distance(places, places, norm=2)[rows, columns].cpu()
    return distances.quantile((torch.arange(QUANTILES) + 0.5) / QUANTILES)


def moments(steps: int) -> dict[int, str]:
    """The moments of a training at which distances are recorded, by the number of steps done.

    Example:
        >>> moments(100)
        {100: 'end', 50: 'half', 0: 'start'}
    """
    return {steps: "end", steps // 2: "half", 0: "start"}


def record_distances(task: Task, moment: str, folder: Path | None) -> None:
    """Add the distances of a moment to a run's folder; None for processes that write nothing.

    Raises:
        ExperimentError: the file system refuses.
    """
    distances = task.distances()
    if distances is None or folder is None:
        return
    import numpy as np

    path = folder / NAME
    columns = {**(read_distances(folder) or {}), moment: distances.numpy()}
    with writing(path, then=CONTINUES), replacing(path) as part, open(part, "wb") as file:
        np.savez_compressed(file, **columns)


def read_distances(folder: Path) -> dict[str, Any] | None:
    """The quantiles in a run's folder by moment, `(500,)` each; None if it has none.

    Raises:
        ExperimentError: the file is damaged.
    """
    import numpy as np

    path = folder / NAME
    try:
        with np.load(path, allow_pickle=False) as file:
            return {moment: file[moment] for moment in MOMENTS if moment in file.files}
    except FileNotFoundError:
        return None
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise ExperimentError(
            f"{path} does not hold distances ({error}); remove it, or train the run again"
        ) from error
