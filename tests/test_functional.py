"""The paper's page as code, against the loops of `reference` and against hand-made atoms."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import reference
import torch
from loss_batches import BATCHES, batches, close, norms
from reference import make_batch, make_linear, real_tokens
from torch import Tensor, nn

from atomsep import functional as F

# Atoms


@norms
@batches
def test_atoms_are_those_of_the_loops(latent: Tensor, mask: Tensor | None, norm: int) -> None:
    atoms = F.form_atoms(latent, mask, norm=norm)
    expected = [reference.atom(tokens, norm) for tokens in real_tokens(latent, mask)]
    real = torch.ones(latent.shape[:2], dtype=torch.bool) if mask is None else mask
    for x, atom in enumerate(expected):
        charges = torch.stack(atom.charges)
        close(atoms.charge[x][real[x]], charges)
        close(atoms.mass[x][real[x]], torch.stack(atom.masses))
        close(atoms.nucleus[x], atom.nucleus)
        close(atoms.radius[x], atom.radius)
        close(atoms.protons[x], sum((q for q in charges if q > 0), start=latent.new_zeros(())))
        close(atoms.electrons[x], sum((-q for q in charges if q < 0), start=latent.new_zeros(())))
        close(atoms.charge_sum[x], charges.sum())
        close(atoms.charge_square[x], (charges**2).sum())
        assert atoms.count[x] == len(charges)
    assert (atoms.charge[~real] == 0).all()
    assert (atoms.mass[~real] == 0).all()


def test_hand_made_atom() -> None:
    # A proton at 1, a neutron at 2 and an electron at 6: nucleus (1 + 2)/3, radius (6 - 1)/3.
    atoms = F.form_atoms(torch.tensor([[[99.0, 1.0], [0.0, 2.0], [-99.0, 6.0]]]))
    assert atoms.charge.tolist() == [[1, 0, -1]]
    assert atoms.mass.tolist() == [[1, 1, 0]]
    assert atoms.nucleus.tolist() == [[1]]
    assert atoms.radius.item() == pytest.approx(5 / 3)
    assert (atoms.protons.item(), atoms.electrons.item(), atoms.count.item()) == (1, 1, 3)


@pytest.mark.parametrize("index", [1, 3, -1, -4, np.int64(2), torch.tensor(1)])
def test_any_feature_can_be_the_charge(index: Any) -> None:
    latent = make_batch(3, 4, 4, seed=6)
    order = [int(index) % 4, *(i for i in range(4) if i != index % 4)]
    moved = F.form_atoms(latent[..., order])
    atoms = F.form_atoms(latent, charge=index)
    for name in ("charge", "mass", "nucleus", "radius", "protons", "electrons"):
        close(getattr(atoms, name), getattr(moved, name), 1e-14)


@norms
@pytest.mark.parametrize("trailing", [False, True], ids=["(M, N)", "(M, N, 1)"])
def test_maps_give_scores_and_positions(norm: int, trailing: bool) -> None:
    latent, mask = BATCHES["ragged"]
    weight = make_batch(4, 3, seed=7)

    def score(e: Tensor) -> Tensor:
        scores = e.sum(-1).sin()
        return scores.unsqueeze(-1) if trailing and e.dim() == 3 else scores

    def place(e: Tensor) -> Tensor:
        return e @ weight

    atoms = F.form_atoms(latent, mask, norm=norm, charge=score, position=place)
    for x, tokens in enumerate(real_tokens(latent, mask)):
        expected = reference.atom(tokens, norm, lambda e: e.sum().sin(), place)
        close(atoms.nucleus[x], expected.nucleus)
        close(atoms.radius[x], expected.radius)
        close(atoms.charge_sum[x], torch.stack(expected.charges).sum())


def test_charge_map_alone_leaves_every_feature_to_the_position() -> None:
    latent = make_batch(3, 4, 5, seed=8)
    atoms = F.form_atoms(latent, charge=lambda e: e[..., 2])
    expected = reference.atom(latent[0], 2, lambda e: e[2], lambda e: e)
    assert atoms.nucleus.shape == (3, 5)
    close(atoms.nucleus[0], expected.nucleus)
    close(atoms.radius[0], expected.radius)


def test_position_map_alone_keeps_the_feature_as_charge() -> None:
    latent = make_batch(3, 4, 5, seed=9)
    atoms = F.form_atoms(latent, charge=-2, position=lambda e: e**2)
    expected = reference.atom(latent[1], 2, lambda e: e[3], lambda e: e**2)
    close(atoms.nucleus[1], expected.nucleus)
    close(atoms.radius[1], expected.radius)


# Pairs of atoms


def energies_by_loop(samples: list[Tensor], norm: int, scale: str, softening: float) -> Tensor:
    atoms = [reference.atom(tokens, norm) for tokens in samples]
    rows = []
    for x, a in enumerate(atoms):
        for y, b in enumerate(atoms):
            pair = reference.coulomb(a, b, norm, softening) if x != y else samples[0].new_zeros(())
            rows.append(pair / (len(a.charges) * len(b.charges)) if scale == "mean" else pair)
    return torch.stack(rows).view(len(atoms), len(atoms))


@norms
@pytest.mark.parametrize("scale", ["mean", "sum"])
@pytest.mark.parametrize("softening", [0.0, 0.3])
@batches
def test_pair_energy_is_the_double_sum(
    latent: Tensor, mask: Tensor | None, norm: int, scale: str, softening: float
) -> None:
    latent = latent.clone().requires_grad_()
    atoms = F.form_atoms(latent, mask, norm=norm)
    energy = F.pair_energy(atoms, norm=norm, softening=softening, scale=scale)
    expected = energies_by_loop(real_tokens(latent, mask), norm, scale, softening)
    close(energy, expected)
    assert (energy.diagonal() == 0).all()
    weights = make_batch(*energy.shape, seed=10)
    if len(latent) > 1:
        grads = [torch.autograd.grad((e * weights).sum(), latent)[0] for e in (energy, expected)]
        close(*grads)


@norms
def test_atomic_distance_is_exact_for_close_nuclei_far_from_the_origin(norm: int) -> None:
    latent = torch.full((3, 1, 3), 4096.0)
    latent[1, 0, 1:] += torch.tensor([3.0, 4.0]) / 1024
    latent[2, 0, 1:] += torch.tensor([30.0, 40.0])
    distance = F.atomic_distance(F.form_atoms(latent), norm)
    near, far = (7 / 1024, 70) if norm == 1 else (5 / 1024, 50)
    # a² + b² - 2ab would be wrong in every digit of the first.
    assert distance[0, 1].item() == near
    assert distance[0, 2].item() == far
    assert (distance == distance.T).all()
    assert (distance.diagonal() == 0).all()


def test_softening_bounds_the_energy_of_coincident_atoms() -> None:
    latent = torch.tensor([[[50.0, 1.0], [50.0, 1.0], [-50.0, 3.0]]]).expand(2, 3, 2)
    atoms = F.form_atoms(latent)  # nucleus 2/3, radius 7/9, net charge 1/3, opposite charges 4/9
    assert F.pair_energy(atoms, softening=0)[0, 1] == math.inf
    softened = 5 / 9 / 0.25 - 4 / 9 / (0.25 + 7 / 9)
    assert F.pair_energy(atoms, softening=0.25)[0, 1].item() == pytest.approx(softened)
    assert 0 < F.pair_energy(atoms)[0, 1] < 1 / F.DEFAULT_SOFTENING


def test_softening_leaves_distant_atoms_alone() -> None:
    latent = torch.tensor([[[50.0, 0.0]], [[50.0, 0.1]]], dtype=torch.float64)
    assert F.pair_energy(F.form_atoms(latent))[0, 1].item() == pytest.approx(10, rel=0.0051)


def test_energy_of_opposite_charges_keeps_its_digits() -> None:
    # c/d - c*/(d + r) with c near c* and r far below d: plain subtraction leaves no digit.
    zeros, one = torch.zeros(2), torch.ones(2)
    atoms = F.Atoms(
        charge=torch.tensor([[1.0, -1.0], [1.0, -1.0]]),
        mass=torch.tensor([[1.0, 0.0], [1.0, 0.0]]),
        nucleus=torch.tensor([[0.0], [1.0]]),
        radius=zeros + 1e-9,
        protons=one,
        electrons=one,
        count=2 * one,
    )
    energy = F.pair_energy(atoms, softening=0, scale="sum")[0, 1].item()
    assert energy == pytest.approx(2e-9, rel=1e-5)


@pytest.mark.parametrize(
    ("protons", "electrons", "expected"),
    [
        ((4.0, 0.0), (1.0, 1.0), None),  # k = (4·1 + 1·0)/(4·0 + 1·1) = 4: d* = r̃/(2 - 1)
        ((2.0, 0.0), (0.0, 3.0), 0.0),  # only opposite charges
        ((2.0, 3.0), (2.0, 3.0), math.inf),  # neutral: always repel
        ((2.0, 3.0), (0.0, 1.0), math.inf),  # same sign of net charge
        ((0.0, 0.0), (0.0, 0.0), math.inf),  # no charges at all
    ],
)
def test_equilibrium_distance_of_hand_made_atoms(
    protons: tuple[float, float], electrons: tuple[float, float], expected: float | None
) -> None:
    atoms = F.Atoms(
        charge=torch.zeros(2, 1),
        mass=torch.zeros(2, 1),
        nucleus=torch.zeros(2, 1),
        radius=torch.tensor([1.0, 3.0]),
        protons=torch.tensor(protons),
        electrons=torch.tensor(electrons),
        count=torch.ones(2),
    )
    distance = F.equilibrium_distance(atoms)
    assert distance[0, 1].item() == distance[1, 0].item() == (2.0 if expected is None else expected)
    assert (distance.diagonal() == math.inf).all()


@pytest.mark.parametrize(
    "signs",
    [
        ([1, 1, 1, -1], [-1, -1, 1, -1], [1, -1, 1, -1]),
        ([1, 1, 1, 1], [-1, -1, -1, -1]),
        ([1, 1, 1, 1], [1, 1, 1, 1], [-1, -1, 1, -1]),
        ([-1, -1, -1, -1], [1, 1, 1, 1], [1, 1, 1, -1], [-1, -1, -1, -1]),
    ],
)
def test_equilibrium_distance_has_the_gradient_of_finite_differences(
    signs: tuple[list[int], ...],
) -> None:
    """Also with samples whose charges have one sign only."""
    latent = make_batch(len(signs), 4, 3, seed=11)
    latent[..., 0] = (latent[..., 0].abs() + 0.2) * torch.tensor(signs)

    def finite(latent: Tensor) -> Tensor:
        distance = F.equilibrium_distance(F.form_atoms(latent))
        return distance[distance.isfinite()]

    assert len(finite(latent)) > 0
    assert torch.autograd.gradcheck(finite, latent.requires_grad_())


def test_atoms_without_charges_leave_the_gradient_of_others_alone() -> None:
    latent = make_batch(3, 4, 3, seed=12)
    latent[:, :, 0] = torch.tensor([[0, 0, 0, 0], [1, 2, 1, -1], [-1, -2, 1, -1]])
    gradients = []
    for some in (latent, latent[1:]):
        leaf = some.clone().requires_grad_()
        distance = F.equilibrium_distance(F.form_atoms(leaf))
        gradients.append(torch.autograd.grad(distance[distance.isfinite()].sum(), leaf)[0])
    assert gradients[1].any()
    close(gradients[0][1:], gradients[1])
    assert (gradients[0][0] == 0).all()


# Constraints


@pytest.mark.parametrize("scale", ["mean", "sum"])
def test_constraints_of_the_loops(scale: str) -> None:
    latent, mask = BATCHES["holes"]
    atoms = F.form_atoms(latent, mask)
    neutrality, occupancy = F.neutrality(atoms, scale), F.occupancy(atoms, scale)
    for x, tokens in enumerate(real_tokens(latent, mask)):
        for weights, term in (((1.0, 0.0), neutrality), ((0.0, 1.0), occupancy)):
            # With one sample there is no pair, and the loss is the constraint alone.
            expected = reference.loss([tokens], 2, scale, *weights)
            close(term[x], expected)


def test_a_third_of_each_particle_meets_both_constraints() -> None:
    atoms = F.form_atoms(torch.tensor([[[99.0, 1.0], [0.0, 2.0], [-99.0, 3.0]]]))
    for scale in ("mean", "sum"):
        assert F.neutrality(atoms, scale).item() == 0
        assert F.occupancy(atoms, scale).item() == pytest.approx(0, abs=1e-12)


# Types and refusals


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_precision_is_float32_at_least(dtype: torch.dtype) -> None:
    latent = make_batch(3, 4, 3, dtype=dtype)
    atoms = F.form_atoms(latent)
    wide = torch.promote_types(dtype, torch.float32)
    for name in ("charge", "mass", "nucleus", "radius", "protons", "electrons", "count"):
        assert getattr(atoms, name).dtype == wide
    close(atoms.radius.double(), F.form_atoms(latent.double()).radius, 1e-6)
    assert F.pair_energy(atoms).dtype == wide


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_maps_see_half_precision_latents_in_float32(dtype: torch.dtype) -> None:
    latent = make_batch(3, 4, 3, dtype=dtype)
    score, place = (make_linear(3, size, dtype=torch.float32) for size in (1, 2))
    atoms = F.form_atoms(latent, charge=score, position=place)
    wide = F.form_atoms(latent.float(), charge=score, position=place)
    assert torch.equal(atoms.radius, wide.radius)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        under = F.form_atoms(latent, charge=score, position=place)
    assert torch.equal(under.radius, wide.radius)


LATENT = torch.zeros(2, 3, 4)
REFUSED = {
    "integers": (TypeError, "floating point, but is torch.int64", lambda: LATENT.long(), {}),
    "complex": (TypeError, "floating point, but is torch.complex64", lambda: LATENT.cfloat(), {}),
    "two axes": (ValueError, r"must be \(M, N, h\).*\(3, 4\)", lambda: LATENT[0], {}),
    "four axes": (ValueError, r"must be \(M, N, h\).*\(1, 2, 3, 4\)", lambda: LATENT[None], {}),
    "no tokens": (ValueError, r"no tokens: shape \(2, 0, 4\)", lambda: LATENT[:, :0], {}),
    "no samples": (ValueError, r"no samples: shape \(0, 3, 4\)", lambda: LATENT[:0], {}),
    "one feature": (ValueError, "nothing is left for the position", lambda: LATENT[..., :1], {}),
    "no feature": (ValueError, "charge=0 is out of range", lambda: LATENT[..., :0], {}),
    "charge": (ValueError, "charge=4 is out of range.* 4 features", lambda: LATENT, {"charge": 4}),
    "charge, negative": (ValueError, "charge=-5 is out", lambda: LATENT, {"charge": -5}),
    "charge, a truth": (
        TypeError,
        r"charge must be a feature index \(an int\) or a callable, not True",
        lambda: LATENT,
        {"charge": True},
    ),
    "charge, a fraction": (TypeError, "int.* callable, not 1.5", lambda: LATENT, {"charge": 1.5}),
    "position": (
        TypeError,
        "position must be None or a callable, not 1",
        lambda: LATENT,
        {"position": 1},
    ),
    "norm": (ValueError, "norm must be 1 or 2, not 3", lambda: LATENT, {"norm": 3}),
    "mask's type": (
        TypeError,
        "mask must be boolean, True on real tokens, but is torch.float32",
        lambda: LATENT,
        {"mask": torch.ones(2, 3)},
    ),
    "mask's shape": (
        ValueError,
        r"mask has shape \(3, 2\), but the tokens have \(2, 3\)",
        lambda: LATENT,
        {"mask": torch.ones(3, 2, dtype=torch.bool)},
    ),
    "empty samples": (
        ValueError,
        "no token in sample 1; drop such samples",
        lambda: LATENT,
        {"mask": torch.tensor([[True, False, False], [False, False, False]])},
    ),
    "score map": (
        ValueError,
        r"one score per token, shape \(2, 3\), but returned \(2, 3, 4\)",
        lambda: LATENT,
        {"charge": nn.Identity()},
    ),
    "position map": (
        ValueError,
        r"one vector per token, shape \(2, 3, h'\), but returned \(2, 4\)",
        lambda: LATENT,
        {"position": lambda e: e.sum(1)},
    ),
}


@pytest.mark.parametrize(("error", "message", "latent", "options"), REFUSED.values(), ids=REFUSED)
def test_form_atoms_refuses(error, message, latent, options) -> None:
    with pytest.raises(error, match=message):
        F.form_atoms(latent(), **options)


@pytest.mark.parametrize(
    ("message", "options"),
    [
        ("norm must be 1 or 2, not 0", {"norm": 0}),
        ('scale must be "mean" or "sum", not \'total\'', {"scale": "total"}),
        ("softening must be a finite length of at least 0, not -0.1", {"softening": -0.1}),
        ("softening must be a finite length of at least 0, not nan", {"softening": math.nan}),
    ],
)
def test_pair_energy_refuses(message: str, options: dict) -> None:
    with pytest.raises(ValueError, match=message):
        F.pair_energy(F.form_atoms(LATENT), **options)


@pytest.mark.parametrize("constraint", [F.neutrality, F.occupancy])
def test_constraints_refuse_an_unknown_scale(constraint) -> None:
    with pytest.raises(ValueError, match='scale must be "mean" or "sum", not \'total\''):
        constraint(F.form_atoms(LATENT), "total")


def test_atomic_distance_refuses_other_norms() -> None:
    with pytest.raises(ValueError, match="norm must be 1 or 2, not 3"):
        F.atomic_distance(F.form_atoms(LATENT), 3)
