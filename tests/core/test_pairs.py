"""The loss from statistics: blocks of rows against the matrix of pairs, listed pairs, ends."""

from __future__ import annotations

import itertools

import pytest
import reference
import torch
from reference import make_batch, make_mask
from torch import Tensor

from atomsep import functional as F
from atomsep.core.plain import pairs
from atomsep.core.reference import constraints, listed_energy, pair_loss
from atomsep.core.statistics import Statistics, Terms

NAMES = ("protons", "electrons", "charge_sum", "charge_square", "radius", "nucleus")
norms = pytest.mark.parametrize("norm", [1, 2])
scales = pytest.mark.parametrize("scale", ["mean", "sum"])


def make_statistics(samples: int = 5, seed: int = 0, norm: int = 2) -> Statistics:
    """Leaves of the graph, of a ragged random batch."""
    latent = make_batch(samples, 6, 4, seed=seed)
    mask = make_mask([6, 3, 1, 5, 4, 2, 6][:samples], 6)
    atoms = F.form_atoms(latent, mask, norm=norm)
    columns = {name: getattr(atoms, name).detach() for name in NAMES}
    return Statistics(Statistics.pack(**columns).requires_grad_(), atoms.count)


def gradients(value: Tensor, statistics: Statistics, **options: bool) -> tuple[Tensor, ...]:
    """By column, the nucleus last."""
    [table] = torch.autograd.grad(value, [statistics.table], **options)
    return *table[:, :5].unbind(1), table[:, 5:]


def close(actual: object, expected: object) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-12)


def by_matrix(statistics: Statistics, terms: Terms) -> Tensor:
    """The loss by the functional page: the mean over the matrix without its diagonal."""
    energy = F.pair_energy(
        statistics, norm=terms.norm, softening=terms.softening, scale=terms.scale
    )
    samples = len(energy)
    return (
        terms.energy * energy.sum() / (samples * (samples - 1))
        + terms.neutrality * F.neutrality(statistics, terms.scale).mean()
        + terms.occupancy * F.occupancy(statistics, terms.scale).mean()
    )


def check_closed_form(statistics: Statistics, terms: Terms, expected: Tensor) -> None:
    """The plain backend's loss and gradient, with and without each other, and weighted."""
    table, count = statistics.table.detach(), statistics.count
    alone, none = pairs.pair_loss(table, count, terms, 1.0, False)
    loss, slopes = pairs.pair_loss(table, count, terms, -1024.0, True)
    assert none is None
    assert slopes is not None
    close(alone, expected)
    close(loss, -1024 * expected)
    found = *slopes[:, :5].unbind(1), slopes[:, 5:]
    close(found, tuple(-1024 * grad for grad in gradients(expected, statistics)))


@norms
@scales
@pytest.mark.parametrize(
    "weights",
    [(1.0, 1.0), (0.0, 0.0), (0.5, 0.0), (0.0, 3.0), (0.5, 3.0, 0.0), (0.5, 3.0, 0.4)],
)
@pytest.mark.parametrize("softening", [0.0, 0.2])
def test_loss_and_gradient_are_those_of_the_matrix(
    norm: int, scale: str, weights: tuple[float, ...], softening: float
) -> None:
    statistics = make_statistics(norm=norm)
    terms = Terms(norm, softening, scale, *weights)
    expected = by_matrix(statistics, terms)
    by_autograd = pair_loss(statistics, terms)
    close(by_autograd, expected)
    close(gradients(by_autograd, statistics), gradients(expected, statistics, retain_graph=True))
    check_closed_form(statistics, terms, expected)


@norms
@scales
@pytest.mark.parametrize(("samples", "energy"), [(1, 1.0), (2, 1.0), (4, 1.0), (4, 0.4), (4, 0.0)])
def test_gradcheck_twice(norm: int, scale: str, samples: int, energy: float) -> None:
    statistics = make_statistics(samples, norm=norm)
    terms = Terms(norm, 0.1, scale, 0.7, 1.3, energy)

    def loss(table: Tensor) -> Tensor:
        return pair_loss(Statistics(table, statistics.count), terms)

    assert torch.autograd.gradcheck(loss, statistics.table)
    assert torch.autograd.gradgradcheck(loss, statistics.table)


@norms
@pytest.mark.parametrize("block", [1, 2 * 7, 3 * 7 + 1, 1 << 20])
def test_blocks_change_nothing(monkeypatch: pytest.MonkeyPatch, norm: int, block: int) -> None:
    statistics = make_statistics(7, norm=norm)
    terms = Terms(norm, 0.01, "mean", 1, 1)
    expected = by_matrix(statistics, terms)
    monkeypatch.setattr(pairs, "BLOCK", block)
    blocks = list(pairs.row_blocks(statistics, terms))
    assert len(blocks) == -(-7 // min(7, max(1, block // 7)))
    check_closed_form(statistics, terms, expected)


# Listed pairs


@norms
@scales
@pytest.mark.parametrize("softening", [0.0, 0.2])
def test_listed_energies_are_entries_of_the_matrix(norm: int, scale: str, softening: float) -> None:
    statistics = make_statistics(norm=norm)
    terms = Terms(norm, softening, scale, 1, 1)
    matrix = F.pair_energy(statistics, norm=norm, softening=softening, scale=scale)
    first, second = torch.tensor(list(itertools.permutations(range(5), 2))).T
    listed = listed_energy(statistics, first, second, terms)
    close(listed, matrix[first, second])
    weights = make_batch(len(listed), seed=3)
    close(
        gradients((weights * listed).sum(), statistics),
        gradients((weights * matrix[first, second]).sum(), statistics),
    )


def test_listing_all_pairs_gives_the_loss_of_all_pairs() -> None:
    statistics = make_statistics()
    terms = Terms(2, 0.01, "mean", 1, 1)
    first, second = torch.tensor(list(itertools.permutations(range(5), 2))).T
    listed, every = pair_loss(statistics, terms, (first, second)), pair_loss(statistics, terms)
    close(listed, every)
    close(gradients(listed, statistics), gradients(every, statistics))


def test_a_pair_may_be_listed_twice() -> None:
    statistics = make_statistics()
    terms = Terms(2, 0.01, "mean", 0, 0)
    energy = F.pair_energy(statistics)
    twice = pair_loss(statistics, terms, (torch.tensor([0, 0, 1]), torch.tensor([2, 2, 3])))
    close(twice, (2 * energy[0, 2] + energy[1, 3]) / 3)


# One sample, and constraints


@pytest.mark.parametrize("listed", [False, True], ids=["all", "listed"])
def test_one_sample_has_no_energy_but_a_graph(listed: bool) -> None:
    statistics = make_statistics(1)
    terms = Terms(2, 0.01, "mean", 0, 0)
    none = torch.zeros(0, dtype=torch.long)
    loss = pair_loss(statistics, terms, (none, none) if listed else None)
    assert loss.item() == 0
    for grad in gradients(loss, statistics):
        assert (grad == 0).all()


@scales
def test_constraints_are_weighted_means_over_samples(scale: str) -> None:
    latent = make_batch(3, 4, 3, seed=5)
    terms = Terms(2, 0.0, scale, 0.25, 3.0)
    expected = sum(reference.loss([tokens], 2, scale, 0.25, 3.0) for tokens in latent) / 3
    close(constraints(F.form_atoms(latent), terms), expected)
