"""The figures show what the formulas and the runs say."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from atomsep.experiments.machine import Machine
from atomsep.experiments.randomness import generator
from atomsep.experiments.registry import run_key
from atomsep.experiments.synthetic.experiment import SYNTHETIC
from atomsep.experiments.synthetic.mixtures import draw
from atomsep.experiments.training import train
from atomsep.functional import equilibrium_distance, pair_energy
from atomsep.report.figures import (
    accuracy_by_method,
    energy_by_distance,
    label_of,
    pair_at,
    principal_plane,
    trained_model,
    untrained_model,
    write_figures,
)


@pytest.mark.parametrize("k", [0.5, 1.0, 1.5, 4.0])
def test_pairs_have_the_similarity_asked_for(k: float) -> None:
    distances = torch.tensor([0.3, 2.0], dtype=torch.float64)
    pairs, unit = pair_at(k, distances)
    energy = pair_energy(pairs, softening=0, scale="sum")[0, 1:] / unit
    torch.testing.assert_close(energy, 1 / distances - k / (distances + 1))
    expected = 1 / (k**0.5 - 1) if k > 1 else float("inf")
    assert equilibrium_distance(pairs)[0, 1].item() == pytest.approx(expected)


def test_marked_distance_is_where_the_curve_is_lowest() -> None:
    axes = energy_by_distance().axes[0]
    curves = [line for line in axes.lines if len(line.get_xdata()) > 10]
    marks = [line for line in axes.lines if line.get_marker() == "o" and len(line.get_xdata())]
    assert len(marks) == 3, "one for each k above 1"
    for mark in marks:
        curve = next(line for line in curves if line.get_color() == mark.get_color())
        lowest = min(curve.get_ydata())
        assert float(mark.get_ydata()[0]) == pytest.approx(lowest, abs=1e-4)


def test_principal_plane_keeps_the_largest_variance_and_puts_a_right() -> None:
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(200) % 2 == 0
    hidden = torch.randn(200, 6, generator=generator)
    hidden[:, 4] -= 20 * labels
    plane = principal_plane(hidden, labels)
    assert plane[labels, 0].min() > plane[~labels, 0].max()
    values = torch.linalg.eigvalsh(torch.cov(hidden.T)).flip(0)[:2]
    torch.testing.assert_close(plane.var(0), values, rtol=1e-4, atol=0)


def test_every_accuracy_is_a_point() -> None:
    accuracies = {"plain": {0: 0.9, 1: 0.91}, "simclr": {0: 0.92}, "atom": {0: 0.95, 1: 0.94}}
    axes = accuracy_by_method(accuracies, 0.96).axes[0]
    points = [float(x) for group in axes.collections for xy in group.get_offsets() for x in xy]
    assert points == pytest.approx([0, 90, 0, 91, 1, 92, 2, 95, 2, 94])
    assert [label.get_text() for label in axes.get_xticklabels()][1] == "SimCLR"


def test_labels_come_from_the_methods() -> None:
    names = ("plain", "hinge-1", "rank-h", "atom", "atom-no-constraints", "gone")
    assert {name: label_of(name) for name in names} == {
        "plain": "cross-\nentropy",
        "hinge-1": "Hinge\n1-norm",
        "rank-h": "Rank-H",
        "atom": "atom\nmodeling",
        "atom-no-constraints": "without\nboth",
        "gone": "gone",
    }


def test_models_are_those_of_the_runs(tmp_path: Path) -> None:
    keys = [run_key(SYNTHETIC, method, 3, tiny=True) for method in ("plain", "atom")]
    machine = Machine(device="cpu", tensorboard=False)
    results = [train(SYNTHETIC, key, tmp_path, machine) for key in keys]
    samples = draw(keys[0].settings.test_samples, generator(3, "test samples"))
    for key, result in zip(keys, results, strict=True):
        for model, right in ((trained_model(key, tmp_path), True), (untrained_model(key), False)):
            with torch.no_grad():
                found = (model(samples.values).argmax(1) == samples.labels).double().mean().item()
            assert (found == pytest.approx(result["metrics"]["accuracy"], abs=1e-6)) == right
    accuracies = {r["method"]: {3: r["metrics"]["accuracy"]} for r in results}
    written = write_figures(tmp_path, tmp_path, keys, accuracies, 0.96)
    assert {path.name for path in written} == {
        *("accuracy.png", "energy.png", "latent.png", "charge.png")
    }
    assert all(path.stat().st_size > 10_000 for path in written)
