"""The numbers in the documentation about charges before and after training."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from numpy.polynomial.hermite_e import hermegauss as hermite

from benchmarks import charges, record

PAGE = Path(__file__).parent.parent / "docs" / "importance.md"


def test_the_page_has_the_table_of_the_results() -> None:
    assert charges.render(record.FOLDER / "charges.csv") in PAGE.read_text()


def test_scores_of_an_untrained_norm_have_the_charges_of_a_normal_distribution() -> None:
    """The 0.17 of the guide, by Gauss-Hermite quadrature and from a batch norm."""
    nodes, weights = (torch.from_numpy(each) for each in hermite(60))
    expected = float((weights * (nodes / 2).tanh().square()).sum() / weights.sum())
    assert expected == pytest.approx(0.1735, abs=1e-4)
    torch.manual_seed(0)
    norm = torch.nn.Sequential(torch.nn.BatchNorm2d(4))
    found = charges.look(norm, "0", 3 + 5 * torch.randn(64, 4, 32, 32))
    assert found["charge_square"] == pytest.approx(expected, abs=2e-3)


def test_signs_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from atomsep.experiments.atoms_file import Atoms, write_atoms

    values = torch.linspace(-2, 2, 10).view(2, 5).numpy()
    runs = ("atom-0a0a0a0a/seed-0", "atom-0a0a0a0a/seed-1", "atom-no-energy-0a0a0a0a/seed-0")
    for run, sign in zip(runs, (1, -1, 1), strict=True):
        folder = tmp_path / run
        folder.mkdir(parents=True)
        write_atoms(folder, Atoms(charges=sign * values / 2, values=values))
    charges.count_signs(tmp_path)
    assert "class A in 1 of 2 runs, on B in 1" in capsys.readouterr().out
