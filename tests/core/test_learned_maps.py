"""AtomLoss with learned maps of charge and position."""

from __future__ import annotations

import math
from collections import Counter

import pytest
import torch
from loss_batches import BATCHES, close, norms, same_loss
from reference import make_batch, make_linear
from torch import Tensor

from atomsep import AtomLoss
from atomsep import functional as F


def plain_loss(loss: AtomLoss, latent: Tensor, mask: Tensor | None) -> Tensor:
    """The same loss by autograd through the functional page."""
    norm, softening, scale, *_ = loss.terms
    options = {"norm": norm, "charge": loss.charge, "position": loss.position}
    atoms = F.form_atoms(latent, mask, **options)
    energy = F.pair_energy(atoms, norm=norm, softening=softening, scale=scale)
    samples = len(energy)
    constraints = F.neutrality(atoms, scale).mean() + F.occupancy(atoms, scale).mean()
    return energy.sum() / (samples * (samples - 1)) + constraints


@norms
@pytest.mark.parametrize("masked", [False, True], ids=["all", "masked"])
@pytest.mark.parametrize("maps", ["both", "charge", "position"])
def test_learned_maps_get_the_gradient_of_autograd(norm: int, masked: bool, maps: str) -> None:
    latent, mask = BATCHES["ragged"]
    latent = latent.clone().requires_grad_()
    mask = mask if masked else None
    charge = 1 if maps == "position" else make_linear(4, 1, seed=1)
    position = None if maps == "charge" else make_linear(4, 3, seed=2)
    loss = AtomLoss(norm, "sum", charge=charge, position=position)
    wanted = [latent, *loss.parameters()]
    assert len(wanted) == (5 if maps == "both" else 3)
    value, expected = loss(latent, mask), plain_loss(loss, latent, mask)
    close(value, expected)
    for one, other in zip(
        torch.autograd.grad(value, wanted), torch.autograd.grad(expected, wanted), strict=True
    ):
        close(one, other)


@norms
def test_learned_maps_equal_the_quadruple_loop(norm: int) -> None:
    latent, mask = BATCHES["holes"]
    score, place = make_linear(3, 1, seed=3), make_linear(3, 4, seed=4)
    loss = AtomLoss(norm, "sum", softening=0, charge=score, position=place)
    same_loss(loss, latent, mask, norm=norm, score=lambda e: score(e)[0], place=place)


def test_callables_equal_the_quadruple_loop() -> None:
    latent, mask = BATCHES["ragged"]
    loss = AtomLoss(
        1, "sum", softening=0, charge=lambda e: e.sum(-1), position=lambda e: e[..., 1:].sin()
    )
    same_loss(loss, latent, mask, norm=1, score=lambda e: e.sum(), place=lambda e: e[1:].sin())


def test_learned_maps_are_part_of_the_module() -> None:
    loss = AtomLoss(charge=make_linear(4, 1), position=make_linear(4, 2))
    names = {"charge.weight", "charge.bias", "position.weight", "position.bias"}
    assert set(loss.state_dict()) == names
    assert not AtomLoss().state_dict()


def test_frozen_latent_still_trains_the_maps() -> None:
    latent = BATCHES["random"][0]
    loss = AtomLoss(charge=make_linear(4, 1))
    loss(latent).backward()
    weight = loss.charge.weight
    expected = torch.autograd.grad(plain_loss(loss, latent, None), weight)[0]
    close(weight.grad, expected)


def test_learned_maps_pass_gradgradcheck() -> None:
    loss = AtomLoss(charge=make_linear(3, 1, seed=1), position=make_linear(3, 2, seed=2))
    latent = make_batch(2, 3, 3, seed=8).requires_grad_()
    assert torch.autograd.gradcheck(loss, latent)
    assert torch.autograd.gradgradcheck(loss, latent)


def test_scores_without_a_gradient_allow_double_backward() -> None:
    latent = make_batch(3, 4, 3, seed=9).requires_grad_()
    loss = AtomLoss(charge=lambda e: e[..., 0].detach())
    (grad,) = torch.autograd.grad(loss(latent), latent, create_graph=True)
    (expected,) = torch.autograd.grad(plain_loss(loss, latent, None), latent)
    close(grad.detach(), expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("autocast", [False, True], ids=["plain", "autocast"])
def test_maps_see_half_precision_latents_in_float32(dtype: torch.dtype, autocast: bool) -> None:
    latent = make_batch(3, 4, 5, dtype=dtype)
    score, place = (make_linear(5, size, dtype=torch.float32) for size in (1, 3))
    loss = AtomLoss(charge=score, position=place)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        value = loss(latent)
    close(value, plain_loss(loss, latent, None), 1e-5)


@pytest.mark.parametrize("filling", [math.nan, math.inf, 1e30])
def test_padding_has_no_influence_on_the_maps(filling: float) -> None:
    latent, mask = BATCHES["ragged"]
    loss = AtomLoss(charge=make_linear(4, 1, seed=1), position=make_linear(4, 3, seed=2))
    parameters = list(loss.parameters())
    expected = torch.autograd.grad(loss(latent, mask), parameters)
    filled = latent.masked_fill(~mask.unsqueeze(-1), filling)
    actual = torch.autograd.grad(loss(filled, mask), parameters)
    for one, other in zip(actual, expected, strict=True):
        close(one, other)


def test_a_map_runs_once_for_a_forward() -> None:
    calls = Counter()

    def score(e: Tensor) -> Tensor:
        calls["charge"] += 1
        return e[..., 0]

    def place(e: Tensor) -> Tensor:
        calls["position"] += 1
        return e[..., 1:]

    AtomLoss(charge=score, position=place)(BATCHES["random"][0])
    assert calls == {"charge": 1, "position": 1}
