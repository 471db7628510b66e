"""The paper's lemma and theorems in their corrected forms.

Where the printed form differs, a test shows an example on which it fails.
"""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from random_batches import Batch, batches, close, norms, order, seeds, token_products
from reference import make_batch
from torch import Tensor

from atomsep import functional as F

# Lemma 1


@settings(max_examples=100)
@given(st.integers(1, 5), seeds)
def test_lemma_1_with_the_inverse_of_the_constant(size: int, seed: int) -> None:
    """|v - u| / K <= |o(v) - o(u)| <= G |v - u| for a G-Lipschitz o with K-Lipschitz inverse."""
    matrix = make_batch(size, size, seed=seed)
    stretch = torch.linalg.svdvals(matrix)
    assume(stretch[-1] > 1e-3)
    lipschitz, inverse_lipschitz = stretch[0], 1 / stretch[-1]
    difference = make_batch(size, seed=seed + 1)
    out = (matrix @ difference).norm()
    assert difference.norm() / inverse_lipschitz <= out * (1 + 1e-9)
    assert out <= lipschitz * difference.norm() * (1 + 1e-9)


def test_lemma_1_as_printed_fails() -> None:
    # o(x) = x/2 has the 2-Lipschitz inverse 2x; the printed lower bound asks |o| for 2 |x|.
    difference, output, inverse_lipschitz = 1.0, 0.5, 2.0
    assert difference / inverse_lipschitz <= output < inverse_lipschitz * difference


# Theorem 1


@st.composite
def samples_of_equal_masses(draw: st.DrawFn) -> Tensor:
    """Two samples whose scores are the same in another order, `(2, N, h)`."""
    tokens, features = draw(st.integers(1, 6)), draw(st.integers(2, 6))
    latent = make_batch(2, tokens, features, seed=draw(seeds), spread=2.0)
    latent[1, :, 0] = latent[0, order(tokens, draw(seeds)), 0]
    return latent


def theorem_1(latent: Tensor, norm: int) -> tuple[Tensor, Tensor, Tensor]:
    """Atomic distance, |delta|_2 and |v_A - v_B|_2 of two samples of equal masses."""
    atoms = F.form_atoms(latent, norm=norm)
    ranks = latent[..., 0].argsort(1)
    masses = atoms.mass.gather(1, ranks)
    close(masses[0], masses[1])
    first, second = (latent[x, ranks[x], 1:] for x in range(2))
    delta = masses[0] / latent.shape[1]
    return F.atomic_distance(atoms, norm)[0, 1], delta.norm(), (first - second).norm()


@settings(max_examples=600)
@given(samples_of_equal_masses(), norms)
def test_theorem_1_with_the_constant_of_the_norm(latent: Tensor, norm: int) -> None:
    """d_AB <= C |v_A - v_B|_2 with C = |delta|_2, in the first norm times sqrt(h')."""
    distance, delta, separation = theorem_1(latent, norm)
    positions = latent.shape[-1] - 1
    constant = delta * (math.sqrt(positions) if norm == 1 else 1)
    assert distance <= constant * separation * (1 + 1e-9)


@pytest.mark.parametrize("norm", [1, 2])
def test_theorem_1_is_tight(norm: int) -> None:
    # Positions that differ by the masses times one vector of equal entries meet the bound.
    scores = make_batch(5, seed=2)
    masses = torch.clamp(1 + torch.tanh(scores / 2), max=1)
    positions = make_batch(5, 4, seed=3)
    moved = positions + masses.unsqueeze(1)
    latent = torch.stack(
        [torch.cat([scores.unsqueeze(1), place], 1) for place in (positions, moved)]
    )
    distance, delta, separation = theorem_1(latent, norm)
    close(distance, delta * separation * (math.sqrt(4) if norm == 1 else 1))


def test_theorem_1_as_printed_fails_in_the_first_norm() -> None:
    # One proton per sample, moved by 1 in each of four features: the 1-norm is 4, the 2-norm 2.
    latent = torch.zeros(2, 1, 5, dtype=torch.float64)
    latent[:, :, 0] = 99
    latent[1, :, 1:] = 1
    distance, delta, separation = theorem_1(latent, 1)
    assert (distance.item(), delta.item(), separation.item()) == (4, 1, 2)
    assert distance > delta * separation


@settings(max_examples=60)
@given(samples_of_equal_masses(), norms, seeds)
def test_atomic_distance_bounds_the_outputs_from_below(
    latent: Tensor, norm: int, seed: int
) -> None:
    """Lemma 1 and Theorem 1 together: |o(v_A) - o(v_B)|_2 >= d_AB / (K C)."""
    distance, delta, _ = theorem_1(latent, norm)
    positions = latent.shape[-1] - 1
    ranks = latent[..., 0].argsort(1)
    first, second = (latent[x, ranks[x], 1:] for x in range(2))
    output = make_batch(positions, positions, seed=seed)
    assume(torch.linalg.svdvals(output)[-1] > 1e-3)
    inverse_lipschitz = 1 / torch.linalg.svdvals(output)[-1]
    constant = delta * (math.sqrt(positions) if norm == 1 else 1)
    gap = (first @ output - second @ output).norm()
    assert gap * inverse_lipschitz * constant >= distance * (1 - 1e-9)


# Theorem 2


def apart(atoms: F.Atoms, distance: Tensor) -> F.Atoms:
    """Two atoms with their nuclei at a distance, all else unchanged."""
    return dataclasses.replace(
        atoms, nucleus=torch.stack([torch.zeros_like(distance), distance]).unsqueeze(1)
    )


def slope(atoms: F.Atoms, distance: Tensor) -> Tensor:
    """dE/dd of the first two atoms at a distance, by autograd."""
    distance = distance.detach().clone().requires_grad_()
    energy = F.pair_energy(apart(atoms, distance), softening=0, scale="sum")[0, 1]
    return torch.autograd.grad(energy, distance)[0]


@settings(max_examples=600)
@given(st.integers(1, 6), st.integers(2, 4), seeds)
def test_theorem_2_energy_is_least_at_the_equilibrium(
    tokens: int, features: int, seed: int
) -> None:
    atoms = F.form_atoms(make_batch(2, tokens, features, seed=seed, spread=2.0))
    alike, opposite = token_products(atoms.charge[0], atoms.charge[1])
    assume(alike > 1e-3)
    k = opposite / alike
    assume(abs(k - 1) > 1e-3)
    equilibrium = F.equilibrium_distance(atoms)[0, 1]
    if k < 1:
        assert equilibrium == math.inf
        for distance in (0.01, 1.0, 100.0):
            assert slope(atoms, atoms.radius.new_tensor(distance)) < 0, "repels at any distance"
        return
    mean_radius = (atoms.radius[0] + atoms.radius[1]) / 2
    close(equilibrium, mean_radius * (k.sqrt() + 1) / (k - 1), 1e-8)
    assume(mean_radius > 1e-3)
    unit = alike / equilibrium**2  # of a slope
    assert abs(slope(atoms, equilibrium)) < 1e-8 * unit
    assert slope(atoms, 0.9 * equilibrium) < 0, "nearer, they repel"
    assert slope(atoms, 1.1 * equilibrium) > 0, "further, they attract"


def test_theorem_2_opposite_charges_alone_meet_at_zero() -> None:
    latent = torch.tensor([[[2.0, 0.0], [1.0, 3.0]], [[-1.0, 5.0], [-3.0, 1.0]]])
    atoms = F.form_atoms(latent)
    assert F.equilibrium_distance(atoms)[0, 1] == 0
    for distance in (1e-3, 1.0, 100.0):
        assert slope(atoms, torch.tensor(distance)) > 0, "attract at any distance"


@settings(max_examples=60)
@given(batches())
def test_theorem_2_no_sample_has_an_equilibrium_with_itself(batch: Batch) -> None:
    assert (F.equilibrium_distance(F.form_atoms(*batch)).diagonal() == math.inf).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_theorem_2_rounding_makes_no_equilibrium(dtype: torch.dtype) -> None:
    # Neutral but for rounding: c = c*, give or take a digit.
    latent = make_batch(500, 6, 3, seed=1, dtype=dtype)
    mirrored = latent * torch.tensor([-1.0, 1.0, 1.0], dtype=dtype)
    atoms = F.form_atoms(torch.cat([latent, mirrored], 1))
    assert (F.equilibrium_distance(atoms).diagonal() == math.inf).all()


def test_theorem_2_keeps_its_digits_near_neutral_samples() -> None:
    wide = F.Atoms(
        charge=torch.zeros(2, 1, dtype=torch.float64),
        mass=torch.zeros(2, 1, dtype=torch.float64),
        nucleus=torch.zeros(2, 1, dtype=torch.float64),
        radius=torch.ones(2, dtype=torch.float64),
        protons=torch.tensor([1, 1 - 2**-10], dtype=torch.float64),
        electrons=torch.tensor([1 - 2**-10, 1], dtype=torch.float64),
        count=torch.ones(2, dtype=torch.float64),
    )
    narrow = F.Atoms(*(field.float() for field in dataclasses.astuple(wide)))
    exact = F.equilibrium_distance(wide)[0, 1].item()
    assert exact == pytest.approx(2**22, rel=2e-3)
    assert F.equilibrium_distance(narrow)[0, 1].item() == pytest.approx(exact, rel=1e-5)


def test_theorem_2_equilibrium_moves_out_as_structures_grow_alike() -> None:
    one, zero = torch.ones(1), torch.zeros(1)
    distances = []
    for share in (0.9, 0.6, 0.51, 0.501):
        atoms = F.Atoms(
            charge=torch.zeros(2, 1),
            mass=torch.zeros(2, 1),
            nucleus=torch.zeros(2, 1),
            radius=torch.ones(2),
            protons=torch.cat([one, one - share]),
            electrons=torch.cat([zero, zero + share]),
            count=torch.ones(2),
        )
        distances.append(F.equilibrium_distance(atoms)[0, 1].item())
    assert distances == sorted(distances)
    assert distances[0] == pytest.approx(1 / (3 - 1), rel=1e-5)  # k = 0.9/0.1
    assert distances[-1] > 100
