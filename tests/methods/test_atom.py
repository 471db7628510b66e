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


def test_what_a_graph_keeps_brings_back_the_numbers_of_its_step() -> None:
    """A graph leaves its numbers where they were captured, whatever ran in between."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 8), nn.Flatten(), nn.Linear(40, 2))
    binding = Atom().bind(model, "0")
    binding.watch_gradients = True

    def step(batch: Tensor) -> tuple[dict[str, float], dict[str, float]]:
        (model(batch).logsumexp(1).mean() + binding.loss()).backward()
        return binding.stats, binding.gradient_shares

    first = step(torch.randn(4, 5, 3))
    kept = binding.strength
    second = step(torch.randn(4, 5, 3))
    assert first[0] != second[0]
    assert first[0].keys() >= {"energy", "protons", "neutrons", "electrons"}
    binding.strength = kept
    assert (binding.stats, binding.gradient_shares) == first
