"""What holds for every batch: invariances, padding, charges."""

from __future__ import annotations

import math

import reference
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from random_batches import Batch, batches, close, norms, order, scales, seeds, token_products
from reference import make_batch, real_tokens
from torch import Tensor

from atomsep import AtomLoss
from atomsep import functional as F


def loss_and_gradient(batch: Batch, norm: int = 2, scale: str = "mean") -> tuple[Tensor, Tensor]:
    latent = batch.latent.clone().requires_grad_()
    loss = AtomLoss(norm, scale)(latent, batch.mask)
    return loss.detach(), torch.autograd.grad(loss, latent)[0]


# Invariance: the loss stays, the gradient moves along


@settings(max_examples=100)
@given(batches(), seeds, norms, scales)
def test_order_of_samples_is_free(batch: Batch, seed: int, norm: int, scale: str) -> None:
    moved = order(len(batch.latent), seed)
    loss, grad = loss_and_gradient(batch, norm, scale)
    mask = None if batch.mask is None else batch.mask[moved]
    moved_loss, moved_grad = loss_and_gradient(Batch(batch.latent[moved], mask), norm, scale)
    close(moved_loss, loss)
    close(moved_grad, grad[moved])


@settings(max_examples=100)
@given(batches(), seeds, norms, scales)
def test_order_of_tokens_is_free_in_every_sample(
    batch: Batch, seed: int, norm: int, scale: str
) -> None:
    samples, tokens, _ = batch.latent.shape
    rows = torch.arange(samples).unsqueeze(1)
    moved = torch.stack([order(tokens, seed + x) for x in range(samples)])
    loss, grad = loss_and_gradient(batch, norm, scale)
    mask = None if batch.mask is None else batch.mask[rows, moved]
    moved_loss, moved_grad = loss_and_gradient(Batch(batch.latent[rows, moved], mask), norm, scale)
    close(moved_loss, loss)
    close(moved_grad, grad[rows, moved])


@settings(max_examples=100)
@given(batches(), seeds, norms)
def test_order_and_sign_of_position_features_are_free(batch: Batch, seed: int, norm: int) -> None:
    features = batch.latent.shape[-1]
    moved = torch.cat([torch.zeros(1, dtype=torch.long), 1 + order(features - 1, seed)])
    signs = make_batch(features, seed=seed).sign()
    signs[0] = 1
    loss, grad = loss_and_gradient(batch, norm)
    turned = Batch(batch.latent[..., moved] * signs, batch.mask)
    moved_loss, moved_grad = loss_and_gradient(turned, norm)
    close(moved_loss, loss)
    close(moved_grad, grad[..., moved] * signs)


@settings(max_examples=100)
@given(batches(), seeds)
def test_rotation_of_positions_is_free_in_the_second_norm(batch: Batch, seed: int) -> None:
    features = batch.latent.shape[-1] - 1
    rotation = torch.eye(features + 1, dtype=torch.float64)
    rotation[1:, 1:] = torch.linalg.qr(make_batch(features, features, seed=seed)).Q
    loss, grad = loss_and_gradient(batch)
    turned_loss, turned_grad = loss_and_gradient(Batch(batch.latent @ rotation, batch.mask))
    close(turned_loss, loss)
    close(turned_grad, grad @ rotation)


def test_rotation_is_not_free_in_the_first_norm() -> None:
    # Protons 5 apart along an axis are 7 apart once turned.
    latent = torch.tensor([[[99.0, 0.0, 0.0]], [[99.0, 5.0, 0.0]]])
    turned = torch.tensor([[[99.0, 0.0, 0.0]], [[99.0, 3.0, 4.0]]])
    for norm, distance in ((1, 7), (2, 5)):
        assert F.atomic_distance(F.form_atoms(latent, norm=norm), norm)[0, 1] == 5
        assert F.atomic_distance(F.form_atoms(turned, norm=norm), norm)[0, 1] == distance


def test_the_nucleus_is_no_centre_of_mass() -> None:
    # The sum is divided by N, not by the mass, so a shift of all positions is not free: atoms of
    # different mass move by different lengths.
    latent = torch.tensor([[[99.0, 1.0], [-99.0, 5.0]], [[99.0, 2.0], [0.0, 4.0]]])
    shift = torch.tensor([0.0, 10.0])
    moved = F.form_atoms(latent + shift).nucleus - F.form_atoms(latent).nucleus
    assert moved.flatten().tolist() == [5, 10]


# Padding


@settings(max_examples=100)
@given(batches(masked=True), norms, scales, st.sampled_from([math.nan, math.inf, -1e300, 3.0]))
def test_padding_has_no_influence_and_no_gradient(
    batch: Batch, norm: int, scale: str, filling: float
) -> None:
    mask = batch.mask
    loss, grad = loss_and_gradient(batch, norm, scale)
    filled = batch.latent.masked_fill(~mask.unsqueeze(-1), filling)
    filled_loss, filled_grad = loss_and_gradient(Batch(filled, mask), norm, scale)
    assert torch.equal(filled_loss, loss)
    assert torch.equal(filled_grad, grad)
    assert (grad[~mask] == 0).all()


@settings(max_examples=100)
@given(batches(masked=True), norms, st.sampled_from([math.nan, math.inf, 3.0]))
def test_padding_has_no_influence_on_plain_atoms(batch: Batch, norm: int, filling: float) -> None:
    mask = batch.mask
    filled = batch.latent.masked_fill(~mask.unsqueeze(-1), filling).requires_grad_()
    atoms = F.form_atoms(filled, mask, norm=norm)
    for x, tokens in enumerate(real_tokens(batch.latent, mask)):
        alone = F.form_atoms(tokens.unsqueeze(0), norm=norm)
        for name in ("nucleus", "radius", "protons", "electrons", "charge_sum", "charge_square"):
            close(getattr(atoms, name)[x], getattr(alone, name)[0], 1e-12)
    total = atoms.radius.sum() + atoms.nucleus.sum() + atoms.charge_square.sum()
    (grad,) = torch.autograd.grad(total, filled)
    assert (grad[~mask] == 0).all()
    assert grad.isfinite().all()


@settings(max_examples=60)
@given(batches(masked=True), norms, scales)
def test_padded_batch_equals_its_samples_in_the_loop(batch: Batch, norm: int, scale: str) -> None:
    latent = batch.latent.clone().requires_grad_()
    default = F.DEFAULT_SOFTENING
    expected = reference.loss(real_tokens(latent, batch.mask), norm, scale, softening=default)
    loss, grad = loss_and_gradient(batch, norm, scale)
    close(loss, expected.detach())
    close(grad, torch.autograd.grad(expected, latent)[0], 1e-8)


@settings(max_examples=60)
@given(batches(masked=False), norms, scales)
def test_mask_without_padding_changes_nothing(batch: Batch, norm: int, scale: str) -> None:
    everything = torch.ones(batch.latent.shape[:2], dtype=torch.bool)
    plain = loss_and_gradient(batch, norm, scale)
    masked = loss_and_gradient(Batch(batch.latent, everything), norm, scale)
    for one, other in zip(masked, plain, strict=True):
        close(one, other, 1e-12)


@settings(max_examples=60)
@given(batches(masked=False), st.integers(2, 4), norms)
def test_mean_scale_does_not_see_the_number_of_tokens(batch: Batch, times: int, norm: int) -> None:
    # Every token several times: the same shares, the same nucleus, the same radius.
    repeated = Batch(batch.latent.repeat(1, times, 1), None)
    close(loss_and_gradient(repeated, norm)[0], loss_and_gradient(batch, norm)[0])
    close(
        loss_and_gradient(repeated, norm, "sum")[0],
        times**2 * loss_and_gradient(batch, norm, "sum")[0],
    )


# Charge


@settings(max_examples=100)
@given(batches())
def test_bounds_of_charge_and_mass(batch: Batch) -> None:
    atoms = F.form_atoms(*batch)
    assert (atoms.charge.abs() <= 1).all()
    assert ((atoms.mass >= 0) & (atoms.mass <= 1)).all()
    assert (atoms.radius >= 0).all()
    close(atoms.protons - atoms.electrons, atoms.charge_sum)
    assert (atoms.protons + atoms.electrons <= atoms.count + 1e-12).all()


@settings(max_examples=100)
@given(batches(samples=2))
def test_net_charges_decide(batch: Batch) -> None:
    """c - |c*| = S_A S_B, so exactly the pairs of opposite net charge have an equilibrium."""
    atoms = F.form_atoms(*batch)
    alike, opposite = token_products(atoms.charge[0], atoms.charge[1])
    net = atoms.charge_sum[0] * atoms.charge_sum[1]
    close(alike - opposite, net)
    assume(abs(net) > 1e-9)
    assert F.equilibrium_distance(atoms)[0, 1].isfinite() == (net < 0)


@settings(max_examples=60)
@given(batches(samples=2), norms)
def test_neutral_samples_repel(batch: Batch, norm: int) -> None:
    # A sample and its mirror image in charge, as one sample, is neutral.
    mirrored = batch.latent * torch.tensor([-1.0] + [1.0] * (batch.latent.shape[-1] - 1))
    mask = None if batch.mask is None else torch.cat([batch.mask, batch.mask], 1)
    atoms = F.form_atoms(torch.cat([batch.latent, mirrored], 1), mask, norm=norm)
    assert (F.pair_energy(atoms, norm=norm) >= -1e-12).all()
    assert F.neutrality(atoms).abs().max() < 1e-12
