"""The method Atom equals AtomLoss, and its ablations leave constraints out."""

from __future__ import annotations

import pytest
import torch
from agreement import BATCHES, agree
from reference import make_batch
from torch import Tensor, nn

from atomsep import AtomLoss
from atomsep.methods import Atom, make_method

ABLATIONS = {
    "atom": {},
    "atom-no-neutrality": {"neutrality": 0.0},
    "atom-no-occupancy": {"occupancy": 0.0},
    "atom-no-constraints": {"neutrality": 0.0, "occupancy": 0.0},
    "atom-no-energy": {"energy": 0.0},
}


@pytest.mark.parametrize(("latent", "mask"), BATCHES.values(), ids=BATCHES)
@pytest.mark.parametrize("name", ABLATIONS)
def test_equals_atom_loss(name: str, latent: Tensor, mask: Tensor | None) -> None:
    method = make_method(name, features=4)
    agree(lambda x: method(x, mask=mask), lambda x: AtomLoss(**ABLATIONS[name])(x, mask), latent)


def test_the_ablations_differ() -> None:
    latent = make_batch(4, 5, 3, seed=1)
    values = {make_method(name, features=3)(latent).item() for name in ABLATIONS}
    assert len(values) == len(ABLATIONS)


@pytest.mark.parametrize(
    "options",
    [
        {"norm": 1},
        {"scale": "sum"},
        {"softening": 0.5},
        {"energy": 0.5},
        {"charge": 2},
        {"position": nn.Identity()},
        {"tokens": 2},
        {"pairs": "sampled"},
    ],
    ids=lambda options: next(iter(options)),
)
def test_options_and_seed_reach_the_loss(options: dict) -> None:
    latent = make_batch(4, 5, 3, seed=2)
    value = make_method("atom", features=3, seed=5, **options)(latent)
    torch.testing.assert_close(value, AtomLoss(**options, seed=5)(latent))
    assert value != AtomLoss()(latent)


def test_learned_maps_are_parameters_of_the_method() -> None:
    method = Atom(charge=nn.Linear(3, 1), position=nn.Linear(3, 2))
    assert len(list(method.parameters())) == 4
