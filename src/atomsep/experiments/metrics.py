"""Metrics that torchmetrics lacks, in its form. They take logits `(M, K)` and labels `(M,)`."""

from __future__ import annotations

from abc import abstractmethod

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from torchmetrics import Metric
from torchmetrics.classification import MulticlassCalibrationError, MulticlassConfusionMatrix

BINS = 15
"""Bins of confidence of the calibration error."""


def calibration(classes: int) -> dict[str, Metric]:
    """How far the predicted probabilities can be trusted: "ece" and "nll"."""
    return {"ece": CalibrationError(classes), "nll": NegativeLogLikelihood()}


class CalibrationError(MulticlassCalibrationError):
    """Expected calibration error: mean gap between confidence and accuracy, over 15 bins.

    torchmetrics would take logits that happen to lie between 0 and 1 for probabilities.

    Args:
        num_classes: number of classes.

    Example:
        >>> metric = CalibrationError(2)
        >>> metric.update(torch.zeros(4, 2), torch.tensor([0, 0, 0, 1]))
        >>> metric.compute()  # 50 % sure, 75 % right
        tensor(0.2500)
    """

    def __init__(self, num_classes: int) -> None:
        super().__init__(num_classes, n_bins=BINS, norm="l1")

    def update(self, logits: Tensor, labels: Tensor) -> None:
        """Count a batch."""
        super().update(logits.softmax(1), labels)


class _Mean(Metric):
    """Mean over all samples of what `of` gives for a batch."""

    total: Tensor
    count: Tensor
    full_state_update = False

    def __init__(self) -> None:
        super().__init__()
        self.add_state("total", torch.tensor(0.0), dist_reduce_fx="sum")
        self.add_state("count", torch.tensor(0), dist_reduce_fx="sum")

    @staticmethod
    @abstractmethod
    def of(logits: Tensor, labels: Tensor) -> Tensor:
        """The sum over a batch."""

    def update(self, logits: Tensor, labels: Tensor) -> None:
        """Count a batch."""
        self.total += self.of(logits, labels)
        self.count += len(logits)

    def compute(self) -> Tensor:
        """The mean so far."""
        return (self.total / self.count).float()


class PredictionEntropy(_Mean):
    """Mean entropy of the predicted distributions, in nats; the labels do not matter.

    Example:
        >>> metric = PredictionEntropy()
        >>> metric.update(torch.zeros(3, 2), torch.zeros(3))
        >>> metric.compute()
        tensor(0.6931)
    """

    @staticmethod
    def of(logits: Tensor, labels: Tensor) -> Tensor:
        """The sum over a batch."""
        logs = logits.log_softmax(1)
        return -(logs.exp() * logs).sum()


class NegativeLogLikelihood(_Mean):
    """Mean negative log probability of the labels, in nats.

    Example:
        >>> metric = NegativeLogLikelihood()
        >>> metric.update(torch.zeros(3, 2), torch.tensor([0, 1, 1]))
        >>> metric.compute()
        tensor(0.6931)
    """

    @staticmethod
    def of(logits: Tensor, labels: Tensor) -> Tensor:
        """The sum over a batch."""
        return cross_entropy(logits, labels, reduction="sum")


class F1InTruth(MulticlassConfusionMatrix):
    """Macro F1 over the classes that occur among the labels.

    A class that occurs only in predictions has no F1 here: its predictions count as misses of the
    true classes. In the mean over all classes it would add a zero.

    Args:
        num_classes: number of classes.

    Example:
        >>> metric = F1InTruth(3)
        >>> metric.update(torch.eye(3)[[0, 1, 2]], torch.tensor([0, 1, 1]))
        >>> metric.compute()  # 1 for class 0, 2/3 for class 1
        tensor(0.8333)
    """

    def compute(self) -> Tensor:
        """The mean so far."""
        confusion = super().compute()
        true, predicted = confusion.sum(1), confusion.sum(0)
        f1 = 2 * confusion.diagonal() / (true + predicted).clamp(min=1)
        return f1[true > 0].mean()
