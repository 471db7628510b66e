"""The paper's own figures, by experiment, metric and method, in the units of its tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

Figure = TypeVar("Figure", float, tuple[float, float])


@dataclass(frozen=True)
class Family:
    """Experiments that share a table in the paper.

    Attributes:
        name: name of the table's files.
        title: title of the table.
        experiments: their names, in the paper's order.
    """

    name: str
    title: str
    experiments: tuple[str, ...]


FAMILIES = (
    Family("mixtures", "Two linear layers on Gaussian mixtures", ("synthetic",)),
    Family("generation", "GANs on image generation", ("mnist-gan", "cifar10-gan", "faces-gan")),
    Family("images", "ResNet-18 on fine-grained images", ("pets", "flowers")),
    Family("imagenet", "ResNet-50 on ImageNet-1K", ("imagenet",)),
    Family("text", "Transformer on text classification", ("cola", "poem")),
)

METRICS = {"imagenet": ("top1", "top5")}
"""The metrics of experiments for which the paper shows more than one."""


def _row(methods: str, *figures: Figure) -> dict[str, Figure]:
    """A row of a table of the paper, by the columns' methods."""
    return dict(zip(methods.split(), figures, strict=True))


_IMAGES = "hinge-1 hinge-2 rank-h simclr atom"
_TEXT = "hinge-1 hinge-2 simcse mixcse atom"

RESULTS: dict[tuple[str, str], dict[str, float]] = {
    ("synthetic", "accuracy"): {"atom": 96.0},  # "an average of 96 %"; the rest is a box plot
    ("mnist-gan", "fid"): {"plain": 88.4, "vq": 303.9, "sscl": 69.4, "atom": 49.0},
    ("cifar10-gan", "fid"): {"plain": 110.4, "sscl": 130.0, "atom": 97.4},
    # StyleSwin is evaluated by its average; VQGAN, of 10.2, is another model.
    ("faces-gan", "ema_fid"): {"plain": 5.26, "atom": 5.18},
    ("pets", "top1"): _row(f"plain {_IMAGES}", 21.0, 20.0, 22.4, 22.4, 20.7, 22.5),
    ("flowers", "top1"): _row(f"plain {_IMAGES}", 56.7, 54.7, 58.0, 58.2, 58.1, 59.1),
    ("cola", "mcc"): _row(f"plain {_TEXT}", 60.0, 59.8, 60.1, 60.8, 60.4, 61.3),
    ("poem", "f1"): _row(f"plain {_TEXT}", 60.3, 62.0, 61.8, 59.3, 60.8, 62.7),
}

IMAGENET: dict[tuple[str, str], dict[str, float]] = {
    ("crop-flip", "top1"): {"plain": 74.97, "atom": 75.10},
    ("crop-flip", "top5"): {"plain": 92.17, "atom": 92.25},
    ("crop-flip-colour", "top1"): {"plain": 75.02, "atom": 75.19},
    ("crop-flip-colour", "top5"): {"plain": 92.20, "atom": 92.35},
}
"""By augmentation and metric."""

P_VALUES: dict[str, dict[str, float]] = {
    "pets": _row(_IMAGES, 0.24, 0.09, 0.12, 0.39, 0.03),
    "flowers": _row(_IMAGES, 0.15, 0.19, 0.03, 0.09, 0.02),
    "cola": _row(_TEXT, 0.31, 0.43, 0.13, 0.32, 0.01),
    "poem": _row(_TEXT, 0.08, 0.14, 0.22, 0.24, 0.09),
}
"""P values of the methods against cross-entropy, from the appendix."""

_ABLATIONS = "atom-no-constraints atom-no-neutrality atom-no-occupancy"

ABLATIONS: dict[str, dict[str, tuple[float, float]]] = {
    "mnist-gan": _row(_ABLATIONS, (-7.6, -29.4), (-25.2, -35.3), (-2.6, -37.3)),
    "cifar10-gan": _row(_ABLATIONS, (-11.2, -16.5), (-21.4, -10.9), (-19.9, -15.5)),
}
"""Best and average difference in FID from atom modeling with both constraints, as printed.

The paper does not say which way it subtracts. Its text says that the constraints help, so a value
below 0 is taken to be worse.
"""


def result(
    experiment: str, metric: str, method: str, settings: Mapping[str, Any] | None = None
) -> float | None:
    """The paper's figure; None if it has none.

    Args:
        experiment: its name.
        metric: its name. The paper has no Fréchet distance other than the FID.
        method: its name.
        settings: the settings of the runs. ImageNet's figures depend on the augmentation, and
            those of faces are of 256 px; neither applies to another folder.

    Example:
        >>> result("flowers", "top1", "atom"), result("mnist-gan", "frechet_lenet", "atom")
        (59.1, None)
    """
    settings = settings or {}
    if experiment in ("imagenet", "faces-gan") and settings.get("folder"):
        return None
    if experiment == "faces-gan" and settings.get("size", 256) != 256:
        return None
    if experiment == "imagenet":
        recipe = str(settings.get("augmentation", "crop-flip"))
        return IMAGENET.get((recipe, metric), {}).get(method)
    return RESULTS.get((experiment, metric), {}).get(method)
