"""Finite numbers for every latent: collapsed, saturated, constant, huge, in every precision."""

from __future__ import annotations

import math

import pytest
import torch
from reference import make_batch, make_linear, make_mask
from torch import Tensor, nn

from atomsep import AtomLoss
from atomsep import functional as F

LARGEST = {torch.float16: 1e4, torch.bfloat16: 1e4, torch.float32: 1e15}
norms = pytest.mark.parametrize("norm", [1, 2])
types = pytest.mark.parametrize("dtype", LARGEST, ids=["float16", "bfloat16", "float32"])
shapes = pytest.mark.parametrize(
    "shape", [(4, 6, 5), (2, 1, 2), (1, 5, 3), (5, 1, 8), (3, 4, 512)], ids=str
)


def with_scores(latent: Tensor, scores: Tensor | float) -> Tensor:
    latent = latent.clone()
    latent[..., 0] = scores
    return latent


def hard_latents(shape: tuple[int, int, int], size: float) -> dict[str, Tensor]:
    """Latents of at most `size` that break plain formulas, in float32."""
    random = make_batch(*shape, seed=1, dtype=torch.float32)
    large = (random / 3).clamp(-1, 1) * size
    ordinary = make_batch(*shape[:2], seed=2, dtype=torch.float32)
    same = large[:1].expand(shape)
    constants = (0.0, 1.0, -1.0, size, -size, 1e-4, -1e-4, 1e-30, -1e-30)
    return {
        **{f"all {value:g}": torch.full(shape, value) for value in constants},
        "large": large,
        "large positions": with_scores(large, ordinary),
        "tiny": random * 1e-6,
        "tiny positions": with_scores(random * 1e-20, ordinary),
        "coincident": same,
        "coincident of ordinary charge": with_scores(same, ordinary[:1]),
        "coincident but for the charge": with_scores(same, ordinary),
        "ordinary and coincident": random[:1].expand(shape),
        "saturated": with_scores(random, size * ordinary.sign()),
        "protons alone": with_scores(large, ordinary.abs()),
        "electrons alone": with_scores(large, -ordinary.abs()),
        "saturated protons": with_scores(random, size),
        "saturated electrons": with_scores(random, -size),
        "equal electrons": with_scores(large, -1.0),
        "neutrons": with_scores(large, 0.0),
        "half the batch again": torch.cat([large[: (shape[0] + 1) // 2]] * 2)[: shape[0]],
    }


@norms
@pytest.mark.parametrize("feature", [0, 2, -1, "a map"])
@pytest.mark.parametrize("score", [math.inf, -math.inf])
def test_infinite_scores_have_the_gradient_of_the_formulas(
    norm: int, feature: int | str, score: float
) -> None:
    """q = ±1 with a slope of 0, whatever arrives there."""
    index, rest = (0, [1, 2, 3]) if feature == "a map" else (int(feature), None)
    latent = make_batch(3, 5, 4, seed=13)
    latent[0, 1, index] = latent[2, 0, index] = score
    maps = {"charge": lambda e: e[..., 0], "position": lambda e: e[..., rest]}
    settings = maps if rest else {"charge": index}
    fused, plain = (latent.clone().requires_grad_() for _ in range(2))
    loss = AtomLoss(norm, **settings)(fused)
    atoms = F.form_atoms(plain, norm=norm, **settings)
    expected = F.pair_energy(atoms, norm=norm).sum() / 6
    expected = expected + (F.neutrality(atoms) + F.occupancy(atoms)).mean()
    torch.testing.assert_close(loss, expected)
    for each in (loss, expected):
        each.backward()
    assert plain.grad.isfinite().all()
    torch.testing.assert_close(fused.grad, plain.grad)


def check(loss: AtomLoss, latent: Tensor, mask: Tensor | None, name: str) -> None:
    latent = latent.clone().requires_grad_()
    value = loss(latent, mask)
    value.backward()
    assert value.isfinite(), f"{name}: loss {value}"
    assert latent.grad.isfinite().all(), f"{name}: gradient"


@norms
@types
@shapes
def test_hard_latents_are_finite(
    shape: tuple[int, int, int], dtype: torch.dtype, norm: int
) -> None:
    for name, latent in hard_latents(shape, LARGEST[dtype]).items():
        check(AtomLoss(norm), latent.to(dtype), None, name)


@norms
@types
@pytest.mark.parametrize("autocast", [torch.bfloat16, torch.float16], ids=str)
def test_hard_latents_are_finite_under_autocast_and_with_a_mask(
    dtype: torch.dtype, norm: int, autocast: torch.dtype
) -> None:
    mask = make_mask([6, 4, 1, 5], 6)
    with torch.autocast("cpu", dtype=autocast):
        for name, latent in hard_latents((4, 6, 5), LARGEST[dtype]).items():
            check(AtomLoss(norm), latent.to(dtype), mask, name)


@norms
@types
def test_sampled_pairs_of_hard_latents_are_finite(dtype: torch.dtype, norm: int) -> None:
    loss = AtomLoss(norm, pairs="sampled", tokens=3)
    for name, latent in hard_latents((4, 6, 5), LARGEST[dtype]).items():
        check(loss, latent.to(dtype), None, name)


@norms
@types
@pytest.mark.parametrize("autocast", [None, torch.float16], ids=str)
def test_learned_maps_of_hard_latents_are_finite(
    dtype: torch.dtype, norm: int, autocast: torch.dtype | None
) -> None:
    score, place = (make_linear(5, size, dtype=torch.float32) for size in (1, 4))
    loss = AtomLoss(norm, charge=score, position=place)
    for name, hard in hard_latents((4, 6, 5), LARGEST[dtype]).items():
        latent = hard.to(dtype).requires_grad_()
        with torch.autocast("cpu", dtype=torch.float16, enabled=autocast is not None):
            value = loss(latent)
        grads = torch.autograd.grad(value, (latent, *loss.parameters()))
        assert value.isfinite(), name
        assert all(grad.isfinite().all() for grad in grads), name


@norms
@types
def test_double_backward_of_hard_latents_is_finite(dtype: torch.dtype, norm: int) -> None:
    for name in ("all 0", "all 1", "ordinary and coincident", "saturated"):
        latent = hard_latents((4, 6, 5), LARGEST[dtype])[name].to(dtype).requires_grad_()
        (grad,) = torch.autograd.grad(AtomLoss(norm)(latent), latent, create_graph=True)
        assert grad.isfinite().all(), name


# Nuclei that nearly touch


def nearly_coincident(gap: float, size: float, features: int) -> Tensor:
    """Two samples whose large positions cancel and whose nuclei are `gap`/3 apart.

    The electrons at ±size have charges that matter, so the gradient of a charge is as large as
    the steepest pair times the largest position.
    """
    latent = torch.zeros(2, 3, features)
    latent[:, 0, 1:], latent[:, 1, 1:] = size, -size
    latent[:, :2, 0] = -1
    latent[1, 2, 1:] = gap / math.sqrt(features - 1)
    return latent


@norms
@pytest.mark.parametrize("features", [2, 512])
@pytest.mark.parametrize("gap", [0.0, 1e-30, 1e-12, 1e-6, 1e-3, 0.02, 0.1])
def test_nearly_coincident_nuclei_are_finite(norm: int, features: int, gap: float) -> None:
    for dtype in (torch.bfloat16, torch.float32):
        latent = nearly_coincident(gap, LARGEST[dtype], features).to(dtype)
        check(AtomLoss(norm), latent, None, f"{dtype}")


@norms
@pytest.mark.parametrize("gap", [1e-3, 0.02, 0.1])
def test_float16_overflows_only_where_its_range_ends(norm: int, gap: float) -> None:
    # The true gradient of these electrons' charges is beyond 65,504: infinite in float16, as
    # GradScaler expects of an overflow, but never NaN, and everything else as in float32.
    latent = nearly_coincident(gap, 1e4, 4).half().requires_grad_()
    wide = latent.detach().float().requires_grad_()
    AtomLoss(norm)(latent).backward()
    AtomLoss(norm)(wide).backward()
    assert wide.grad.isfinite().all()
    assert not latent.grad.isnan().any()
    torch.testing.assert_close(latent.grad, wide.grad.half(), rtol=1e-2, atol=1e-2)


@norms
def test_slope_of_a_pair_is_bounded(norm: int) -> None:
    # Two protons: E = 1/sqrt(d² + ε²) is steepest at d = ε/sqrt(2), where its slope is 0.385/ε².
    steepest = 0
    for gap in torch.logspace(-6, 2, 200).tolist():
        latent = torch.tensor([[[99.0, 0.0]], [[99.0, gap]]], requires_grad=True)
        (grad,) = torch.autograd.grad(AtomLoss(norm, neutrality=0, occupancy=0)(latent), latent)
        steepest = max(steepest, grad.abs().max().item())
    assert steepest == pytest.approx(2 / math.sqrt(27) / F.DEFAULT_SOFTENING**2, rel=5e-3)
    assert steepest < torch.finfo(torch.float16).max


@norms
def test_coincident_samples_are_pushed_apart_once_they_differ(norm: int) -> None:
    latent = torch.zeros(2, 4, 3)
    latent[..., 0] = 2.0
    latent[1, :, 1] = 1e-3
    latent.requires_grad_()
    AtomLoss(norm)(latent).backward()
    assert (latent.grad[0, :, 1] > 0).all(), "descent moves the first down"
    assert (latent.grad[1, :, 1] < 0).all(), "and the second up"


# Training in half precision


def test_overflow_is_skipped_and_training_recovers() -> None:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(8, 6, 4, generator=generator)
    layer = nn.Linear(4, 8)
    with torch.no_grad():
        layer.weight.copy_(torch.randn(8, 4, generator=generator) / 2)
        layer.bias.zero_()
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**40, growth_interval=1000)
    loss_of = AtomLoss()
    losses, skipped = [], 0
    for _ in range(60):
        before = layer.weight.detach().clone()
        with torch.autocast("cpu", dtype=torch.float16):
            latent = layer(inputs)
            assert latent.dtype == torch.float16
            loss = loss_of(latent)
        assert loss.dtype == torch.float32
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        overflow = not all(p.grad.isfinite().all() for p in layer.parameters())
        scale = scaler.get_scale()
        scaler.step(optimizer)
        scaler.update()
        assert torch.equal(layer.weight, before) == overflow
        assert (scaler.get_scale() < scale) == overflow
        skipped += overflow
        losses.append(loss.item())
    assert losses[0] == losses[1], "the first step was skipped"
    assert 5 < skipped < 40, "the scale fell into range and stayed there"
    assert layer.weight.isfinite().all()
    assert losses[-1] < 0.9 * losses[0]
