"""Metrics that torchmetrics lacks, in its form. They take logits `(M, K)` and labels `(M,)`."""

from __future__ import annotations

import torch
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.classification import MulticlassConfusionMatrix


class PredictionEntropy(Metric):
    """Mean entropy of the predicted distributions, in nats.

    Example:
        >>> metric = PredictionEntropy()
        >>> metric.update(torch.zeros(3, 2), torch.zeros(3))
        >>> metric.compute()
        tensor(0.6931)
    """

    total: Tensor
    count: Tensor
    full_state_update = False

    def __init__(self) -> None:
        super().__init__()
        self.add_state("total", torch.tensor(0.0), dist_reduce_fx="sum")
        self.add_state("count", torch.tensor(0), dist_reduce_fx="sum")

    def update(self, logits: Tensor, labels: Tensor) -> None:
        """Count a batch; the labels do not matter."""
        logs = logits.log_softmax(1)
        self.total += -(logs.exp() * logs).sum()
        self.count += len(logits)

    def compute(self) -> Tensor:
        """The mean so far."""
        return (self.total / self.count).float()


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
