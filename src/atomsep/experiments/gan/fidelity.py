"""How close generated images are to real ones: Fréchet distance, precision and recall.

The computation is torch-fidelity's. The Gaussian for the Fréchet distance is fitted to all real
images. For precision and recall (Kynkäänniemi et al., 2019) both sets must be equally dense, so as
many real images are drawn as there are generated ones, the same in every run.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from atomsep.experiments.errors import ExperimentError
from atomsep.experiments.gan.experiments import NEIGHBOURS
from atomsep.experiments.gan.features import Features, import_fidelity
from atomsep.experiments.randomness import generator


class Fidelity:
    """Compares generated images with one set of real ones.

    The features of the real images are computed at the first comparison, and kept.

    Args:
        features: the features to compare.
        real: bytes `(n, channels, H, W)`.

    Raises:
        ExperimentError: torch-fidelity is not installed, or there are too few images.
    """

    def __init__(self, features: Features, real: Tensor) -> None:
        import_fidelity("metric_fid")
        if len(real) <= NEIGHBOURS:
            raise ExperimentError(
                f"samples must be compared with more than {NEIGHBOURS} real images, not {len(real)}"
            )
        self.features, self.real = features, real

    def compare(self, generated: Tensor) -> dict[str, float]:
        """The metrics of generated images, bytes `(N, channels, H, W)`.

        Returns:
            The Fréchet distance under the features' own name, precision and recall.

        Raises:
            ExperimentError: a feature is not finite.
        """
        found, (real_statistics, real) = self._features(generated), self._known
        distance = frechet(statistics(found), real_statistics)
        return {self.features.metric: distance, **precision_recall(found, real[: len(found)])}

    @cached_property
    def _known(self) -> tuple[Any, Tensor]:
        """Statistics of the real images' features, and the features in random order."""
        real = self._features(self.real)
        order = torch.randperm(len(real), generator=generator(0, "real images"))
        return statistics(real), real[order]

    def _features(self, images: Tensor) -> Tensor:
        features = self.features.of(images)
        if not features.isfinite().all():
            raise ExperimentError(
                f"the features {self.features.name!r} of some images are not finite; no distance "
                f"can be computed"
            )
        return features


def statistics(features: Tensor) -> Any:
    """Mean and covariance of features `(n, F)`, in float64."""
    return import_fidelity("metric_fid").fid_features_to_statistics(features.double().cpu())


def frechet(first: Any, second: Any) -> float:
    r"""Squared Fréchet distance of the Gaussians with these statistics.

    $$|\mu_1 - \mu_2|^2 + \text{tr}(\Sigma_1 + \Sigma_2 - 2 (\Sigma_1 \Sigma_2)^{1/2})$$
    """
    metric = import_fidelity("metric_fid")
    found = metric.fid_statistics_to_metric(first, second, verbose=False)
    return float(found[metric.KEY_METRIC_FID])


def precision_recall(generated: Tensor, real: Tensor) -> dict[str, float]:
    """Share of generated features within the balls of real ones, and the reverse."""
    found = import_fidelity("metric_prc").prc_features_to_metric(
        generated, real, prc_neighborhood=NEIGHBOURS, save_cpu_ram=True, verbose=False
    )
    return {name: float(found[name]) for name in ("precision", "recall")}
