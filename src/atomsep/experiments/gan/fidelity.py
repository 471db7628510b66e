"""How close generated images are to real ones: Fréchet distance, precision and recall.

The Gaussian for the Fréchet distance is fitted to all real images. For precision and recall
(Kynkäänniemi et al., 2019) both sets must be equally dense, so as many real images are drawn as
there are generated ones, the same in every run. Everything is computed in float64 on the device of
the features.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from atomsep.experiments.errors import ExperimentError
from atomsep.experiments.gan.experiments import NEIGHBOURS
from atomsep.experiments.gan.features import Features
from atomsep.experiments.randomness import generator

BLOCK = 1024
"""Features that are widened to float64, or compared with all others, at once."""


class Fidelity:
    """Compares generated images with one set of real ones.

    The features of the real images are computed at the first comparison, and kept.

    Args:
        features: the features to compare.
        real: bytes `(n, channels, H, W)`.

    Attributes:
        metric: name of the Fréchet distance.

    Raises:
        ExperimentError: there are too few images.
    """

    higher_is_better = False
    floor = -math.inf

    def __init__(self, features: Features, real: Tensor) -> None:
        if len(real) <= NEIGHBOURS:
            raise ExperimentError(
                f"samples must be compared with more than {NEIGHBOURS} real images, not {len(real)}"
            )
        self.features, self.real, self.metric = features, real, features.metric

    def compare(self, generated: Tensor) -> dict[str, float]:
        """The metrics of generated images, bytes `(N, channels, H, W)`.

        Returns:
            The Fréchet distance under the features' own name, precision and recall.

        Raises:
            ExperimentError: a feature is not finite.
        """
        found, (real_statistics, real) = self._features(generated), self._known
        distance = frechet(real_statistics, statistics(found))
        return {self.metric: distance, **precision_recall(found, real[: len(found)])}

    @cached_property
    def _known(self) -> tuple[Statistics, Tensor]:
        """Statistics of the real images' features, and the features in random order."""
        real = self._features(self.real)
        order = torch.randperm(len(real), generator=generator(0, "real images"))
        return statistics(real), real[order.to(real.device)]

    def _features(self, images: Tensor) -> Tensor:
        features = self.features.of(images)
        if not features.isfinite().all():
            raise ExperimentError(
                f"the features {self.features.name!r} of some images are not finite; no distance "
                f"can be computed"
            )
        # Apple's GPUs have no float64.
        return features.cpu() if features.device.type == "mps" else features


@dataclass(frozen=True)
class Statistics:
    """A Gaussian: mean `(F,)` and covariance `(F, F)`, in float64."""

    mean: Tensor
    covariance: Tensor

    @cached_property
    def root(self) -> Tensor:
        """Symmetric root of the covariance; eigenvalues below 0 are rounding, and count as 0."""
        values, vectors = torch.linalg.eigh(self.covariance)
        root: Tensor = (vectors * values.clamp(min=0).sqrt()) @ vectors.T
        return root


def statistics(features: Tensor) -> Statistics:
    """Mean and covariance of features `(n, F)`."""
    mean = features.mean(0, dtype=torch.float64)
    covariance = torch.zeros(len(mean), len(mean), dtype=torch.float64, device=mean.device)
    for part in features.split(BLOCK):
        centred = part.double() - mean
        covariance.addmm_(centred.T, centred)
    return Statistics(mean, covariance / (len(features) - 1))


def frechet(first: Statistics, second: Statistics) -> float:
    r"""Squared Fréchet distance of the Gaussians with these statistics.

    $$|\mu_1 - \mu_2|^2 + \text{tr}(\Sigma_1 + \Sigma_2 - 2 (\Sigma_1 \Sigma_2)^{1/2})$$

    $\Sigma_1 \Sigma_2$ has the eigenvalues of the symmetric
    $\Sigma_1^{1/2} \Sigma_2 \Sigma_1^{1/2}$, whatever the ranks, so that no root of a matrix
    without symmetry is needed.
    """
    product = first.root @ second.covariance @ first.root
    eigenvalues = torch.linalg.eigvalsh((product + product.T) / 2)
    cross = eigenvalues.clamp(min=0).sqrt().sum()
    traces = first.covariance.trace() + second.covariance.trace()
    return float((first.mean - second.mean).square().sum() + traces - 2 * cross)


def precision_recall(generated: Tensor, real: Tensor) -> dict[str, float]:
    """Share of generated features within the balls of real ones, and the reverse."""
    generated, real = generated.double(), real.double()
    reach = _radii(real)
    precise = []
    recalled = torch.zeros(len(real), dtype=torch.bool, device=real.device)
    for part, radii in zip(generated.split(BLOCK), _radii(generated).split(BLOCK), strict=True):
        distances = torch.cdist(part, real)
        precise.append((distances <= reach).any(1))
        recalled |= (distances <= radii.unsqueeze(1)).any(0)
    shares = {"precision": torch.cat(precise), "recall": recalled}
    return {name: float(share.double().mean()) for name, share in shares.items()}


def _radii(points: Tensor) -> Tensor:
    """Distance of each point to its neighbour of the order `NEIGHBOURS`, itself not counted."""
    parts = (torch.cdist(part, points) for part in points.split(BLOCK))
    return torch.cat([distances.kthvalue(NEIGHBOURS + 1, dim=1).values for distances in parts])
