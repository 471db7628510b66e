"""The figures: what they show is what the formulas say."""

from __future__ import annotations

import pytest
import torch

from atomsep.experiments.figures import energy_by_distance, pair_at, principal_plane
from atomsep.functional import equilibrium_distance, pair_energy


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
