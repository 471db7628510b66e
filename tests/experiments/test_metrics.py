"""Metrics against scikit-learn and SciPy, over several batches."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.special import softmax
from scipy.stats import entropy
from sklearn.metrics import f1_score, log_loss, matthews_corrcoef

from atomsep.experiments.metrics import F1InTruth, PredictionEntropy, calibration
from atomsep.experiments.text.build import cola_metrics, own_metrics, poem_metrics


def predictions(seed: int, classes: int, last_in_truth: bool) -> tuple[torch.Tensor, torch.Tensor]:
    rng = torch.Generator().manual_seed(seed)
    logits = torch.randn(90, classes, generator=rng)
    labels = torch.randint(classes - (not last_in_truth), (90,), generator=rng)
    return logits, labels


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("last_in_truth", [True, False])
def test_f1_is_scikit_learns_over_the_labels_of_the_truth(seed: int, last_in_truth: bool) -> None:
    logits, labels = predictions(seed, 4, last_in_truth)
    said = logits.argmax(1)
    metrics = poem_metrics(4)
    for part in range(0, 90, 32):
        for metric in metrics.values():
            metric.update(logits[part : part + 32], labels[part : part + 32])
    got = {name: float(metric.compute()) for name, metric in metrics.items()}
    present = labels.unique().tolist()
    assert got["f1"] == pytest.approx(f1_score(labels, said, labels=present, average="macro"))
    for name, average in (("micro", "micro"), ("weighted", "weighted"), ("macro_all", "macro")):
        assert got[f"f1_{name}"] == pytest.approx(f1_score(labels, said, average=average))
    if not last_in_truth:  # the absent class pulls the mean over all down
        assert got["f1_macro_all"] < got["f1"]


def test_f1_of_a_class_that_nobody_says() -> None:
    metric = F1InTruth(3)
    metric.update(torch.eye(3)[[0, 0]], torch.tensor([0, 1]))
    assert float(metric.compute()) == pytest.approx((2 / 3 + 0) / 2)


def test_matthews_correlation_is_scikit_learns() -> None:
    logits, labels = predictions(0, 2, True)
    metric = cola_metrics(2)["mcc"]
    metric.update(logits, labels)
    assert float(metric.compute()) == pytest.approx(matthews_corrcoef(labels, logits.argmax(1)))


def test_entropy_is_scipys() -> None:
    logits, labels = predictions(1, 5, True)
    metric = PredictionEntropy()
    metric.update(30 * logits[:50], labels[:50])
    metric.update(30 * logits[50:], labels[50:])
    expected = entropy(softmax(30 * logits.double().numpy(), axis=1), axis=1).mean()
    assert float(metric.compute()) == pytest.approx(expected, rel=1e-5)


def binned_gap(probabilities: np.ndarray, labels: np.ndarray) -> float:
    """The expected calibration error by its definition: bins (0, 1/15], (1/15, 2/15], ..."""
    confidence, said = probabilities.max(1), probabilities.argmax(1)
    total = 0.0
    for low in range(15):
        inside = (confidence > low / 15) & (confidence <= (low + 1) / 15)
        if inside.any():
            gap = (said == labels)[inside].mean() - confidence[inside].mean()
            total += inside.mean() * abs(gap)
    return total


@pytest.mark.parametrize("classes", [2, 5])
@pytest.mark.parametrize("scale", [0.1, 1.0, 8.0])
def test_calibration_is_that_of_scikit_learn_and_of_the_definition(
    classes: int, scale: float
) -> None:
    logits, labels = predictions(2, classes, True)
    some = logits[:32].sigmoid()
    logits = scale * logits
    logits[:32] = some  # a batch of logits that could be probabilities
    metrics = calibration(classes)
    for part in range(0, 90, 32):
        for metric in metrics.values():
            metric.update(logits[part : part + 32], labels[part : part + 32])
    probabilities = softmax(logits.double().numpy(), axis=1)
    expected = {
        "ece": binned_gap(probabilities, labels.numpy()),
        "nll": log_loss(labels, probabilities, labels=range(classes)),
    }
    got = {name: float(metric.compute()) for name, metric in metrics.items()}
    assert got == pytest.approx(expected, rel=1e-4)


def test_text_is_calibrated_too() -> None:
    for metrics in (cola_metrics(2), poem_metrics(4), own_metrics(3)):
        assert {"ece", "nll"} < metrics.keys()
