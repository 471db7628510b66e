"""The closed-form node against autograd through the plain formulas, and what it costs."""

from __future__ import annotations

import pytest
import torch
from allocations import Allocations
from reference import make_batch, make_mask
from torch import Tensor

from atomsep import AtomLoss
from atomsep import functional as F
from atomsep.checks import count_tokens
from atomsep.core.layout import Layout
from atomsep.core.node import measure
from atomsep.core.plain import atoms as slabs
from atomsep.core.statistics import Reading, Statistics, Tokens

FIELDS = ("protons", "electrons", "charge_sum", "charge_square", "radius", "nucleus")
MASK = torch.tensor([[1, 1, 0, 1, 0], [0, 1, 1, 1, 1], [0, 0, 1, 0, 0], [1, 1, 1, 1, 1]]).bool()
norms = pytest.mark.parametrize("norm", [1, 2])
masks = pytest.mark.parametrize("mask", [None, MASK], ids=["all", "masked"])


def close(actual: Tensor, expected: Tensor, tolerance: float = 1e-12) -> None:
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)


def read(
    latent: Tensor, mask: Tensor | None = None, *, norm: int = 2, charge: int = 0
) -> Statistics:
    """The closed form of a latent `(M, N, h)`."""
    count = count_tokens(latent, mask)
    return measure(Tokens(latent, None, mask, count, Reading(Layout(), charge, norm))).statistics


def weigh(atoms: F.AtomStatistics, names: tuple[str, ...] = FIELDS) -> Tensor:
    """A number that depends on every entry of the fields, each with a weight of its own."""
    total = atoms.radius.new_zeros(())
    for seed, name in enumerate(names):
        field = getattr(atoms, name)
        total = total + (field * make_batch(*field.shape, seed=seed, dtype=field.dtype)).sum()
    return total


def gradient(value: Tensor, *inputs: Tensor) -> tuple[Tensor, ...]:
    return torch.autograd.grad(value, inputs, retain_graph=True)


# Value and gradient


@norms
@masks
@pytest.mark.parametrize("charge", [0, 2, -1])
def test_closed_form_equals_autograd(mask: Tensor | None, norm: int, charge: int) -> None:
    latent = make_batch(4, 5, 4, seed=1).requires_grad_()
    plain = F.form_atoms(latent, mask, norm=norm, charge=charge)
    fused = read(latent, mask, norm=norm, charge=charge)
    for name in (*FIELDS, "count"):
        close(getattr(fused, name), getattr(plain, name))
    for names in (*((name,) for name in FIELDS), FIELDS):
        close(*gradient(weigh(fused, names), latent), *gradient(weigh(plain, names), latent))


@norms
@masks
def test_closed_form_of_given_scores_equals_autograd(mask: Tensor | None, norm: int) -> None:
    positions = make_batch(4, 5, 3, seed=2).requires_grad_()
    scores = make_batch(4, 5, seed=3).requires_grad_()
    plain = F.form_atoms(positions, mask, norm=norm, charge=lambda _: scores, position=lambda p: p)
    count = count_tokens(positions, mask)
    reading = Reading(Layout(), None, norm)
    fused = measure(Tokens(positions, scores, mask, count, reading)).statistics
    for name in FIELDS:
        close(getattr(fused, name), getattr(plain, name))
        expected = torch.autograd.grad(
            weigh(plain, (name,)), (positions, scores), retain_graph=True, materialize_grads=True
        )
        actual = torch.autograd.grad(weigh(fused, (name,)), (positions, scores), retain_graph=True)
        for one, other in zip(actual, expected, strict=True):
            close(one, other)


@norms
@masks
def test_differentiable_backward_is_the_same_gradient(mask: Tensor | None, norm: int) -> None:
    latent = make_batch(4, 5, 4, seed=4).requires_grad_()
    (once,) = torch.autograd.grad(weigh(read(latent, mask, norm=norm)), latent)
    (again,) = torch.autograd.grad(weigh(read(latent, mask, norm=norm)), latent, create_graph=True)
    assert again.requires_grad
    close(once, again)


@norms
@masks
def test_closed_form_passes_gradcheck_twice(mask: Tensor | None, norm: int) -> None:
    mask = None if mask is None else mask[:2, :3]
    latent = make_batch(2, 3, 3, seed=5).requires_grad_()

    def fields(latent: Tensor) -> tuple[Tensor, ...]:
        result = read(latent, mask, norm=norm)
        return tuple(getattr(result, name) for name in FIELDS)

    assert torch.autograd.gradcheck(fields, latent)
    assert torch.autograd.gradgradcheck(fields, latent)


def test_token_on_the_nucleus_has_a_finite_gradient() -> None:
    # An electron exactly on the nucleus: the norm has no slope there, and 0 is the one to take.
    latent = torch.tensor([[[9.0, 4.0, 2.0], [-200.0, 2.0, 1.0]]], requires_grad=True)
    atoms = read(latent)
    assert atoms.nucleus.tolist() == [[2, 1]]
    assert atoms.radius.item() == 0
    (grad,) = gradient(atoms.radius.sum(), latent)
    assert grad.isfinite().all()


@pytest.mark.parametrize("mask", [None, MASK], ids=["all", "masked"])
def test_every_gradient_is_written(poisoned_memory: None, mask: Tensor | None) -> None:
    latent = make_batch(4, 5, 4, seed=6).requires_grad_()
    plain = gradient(weigh(F.form_atoms(latent, mask)), latent)
    close(*gradient(weigh(read(latent, mask)), latent), *plain)
    skipped = torch.cat([make_batch(4, 2, 4, seed=7), latent.detach()], 1).requires_grad_()
    count = count_tokens(latent, mask)
    reading = Reading(Layout(skip=2), 0, 2)
    source = measure(Tokens(skipped, None, mask, count, reading)).statistics
    (grad,) = gradient(weigh(source), skipped)
    assert (grad[:, :2] == 0).all()
    close(grad[:, 2:], *plain)


# Slabs


@norms
@masks
@pytest.mark.parametrize("elements", [1, 2 * 20, 3 * 20 + 1], ids=["one", "two", "three"])
def test_slabs_change_nothing(
    monkeypatch: pytest.MonkeyPatch, mask: Tensor | None, norm: int, elements: int
) -> None:
    latent = make_batch(4, 5, 4, seed=8).requires_grad_()
    whole = read(latent, mask, norm=norm)
    (expected,) = gradient(weigh(whole), latent)
    monkeypatch.setitem(slabs.SLAB, "cpu", elements)
    assert len(list(slabs.slabs(latent))) == -(-4 // max(1, elements // 20))
    parts = read(latent, mask, norm=norm)
    for name in FIELDS:
        close(getattr(parts, name), getattr(whole, name))
    close(*gradient(weigh(parts), latent), expected)


# Layouts

TOKENS = make_batch(3, 6, 4, seed=9)
OUTPUTS = {
    "(M, C, H, W)": (Layout("channels_first"), TOKENS.mT.unflatten(2, (2, 3)).contiguous()),
    "(M, C, H, W) in channels-last memory": (
        Layout("channels_first"),
        TOKENS.mT.unflatten(2, (2, 3)).contiguous(memory_format=torch.channels_last),
    ),
    "(M, C, H, W) with H last in memory": (
        Layout("channels_first"),
        TOKENS.mT.unflatten(2, (2, 3)).transpose(2, 3).contiguous().transpose(2, 3),
    ),
    "(M, C, L)": (Layout("channels_first"), TOKENS.mT.contiguous()),
    "(M, H, W, C)": (Layout("channels_last"), TOKENS.unflatten(1, (3, 2)).contiguous()),
    "(L, M, C)": (Layout("length_first"), TOKENS.transpose(0, 1).contiguous()),
    "(M, L, C) after 1": (Layout(skip=1), torch.cat([TOKENS[:, :1] * 5, TOKENS], 1)),
    "(L, M, C) after 2": (
        Layout("length_first", skip=2),
        torch.cat([TOKENS[:, :2] * 5, TOKENS], 1).transpose(0, 1).contiguous(),
    ),
    "(M, C, L) after 1": (
        Layout("channels_first", skip=1),
        torch.cat([TOKENS[:, :1] * 5, TOKENS], 1).mT.contiguous(),
    ),
}


@norms
@pytest.mark.parametrize("masked", [False, True], ids=["all", "masked"])
@pytest.mark.parametrize(("layout", "output"), OUTPUTS.values(), ids=OUTPUTS)
def test_layouts_are_permutations(
    poisoned_memory: None, layout: Layout, output: Tensor, masked: bool, norm: int
) -> None:
    mask = make_mask([6, 2, 4], 6) if masked else None
    loss = AtomLoss(norm, charge=1)
    tokens = TOKENS.clone().requires_grad_()
    expected = loss(tokens, mask)
    (grad_tokens,) = gradient(expected, tokens)

    output = output.clone(memory_format=torch.preserve_format).requires_grad_()
    measured = loss.measure(output, mask, layout)
    value = loss.from_statistics(measured.statistics)
    (grad,) = gradient(value, output)
    close(value, expected)
    close(layout.tokens(grad), grad_tokens)
    close(measured.charge, loss.importance(TOKENS, mask), 1e-7)
    if layout.skip:
        front = Layout(layout.axes).tokens(grad)[:, : layout.skip]
        assert front.numel()
        assert (front == 0).all()


# What is handed on


@pytest.mark.parametrize("passing", ["alias", "clone"])
@pytest.mark.parametrize("skip", [0, 2])
def test_node_adds_the_gradients_of_what_it_passes_on(passing: str, skip: int) -> None:
    latent = make_batch(3, 5, 4, seed=10).requires_grad_()
    weights = make_batch(3, 5, 4, seed=11)
    loss = AtomLoss()
    (expected,) = gradient(loss(latent[:, skip:]) + (latent.square() * weights).sum(), latent)
    measured = loss.measure(latent, None, Layout(skip=skip), passing=passing)
    assert (measured.passed.data_ptr() == latent.data_ptr()) == (passing == "alias")
    task = (measured.passed.square() * weights).sum()
    (actual,) = gradient(task + loss.from_statistics(measured.statistics), latent)
    close(actual, expected)


def test_statistics_left_unused_cost_no_gradient() -> None:
    latent = make_batch(3, 5, 4, seed=12).requires_grad_()
    passed = AtomLoss().measure(latent, None, Layout(), passing="alias").passed
    (grad,) = gradient((3 * passed).sum(), latent)
    assert (grad == 3).all()


def test_clone_may_be_overwritten_between_the_passes() -> None:
    latent = make_batch(3, 5, 4, seed=13).requires_grad_()
    loss = AtomLoss()
    (expected,) = gradient(loss(latent) + latent.relu().sum(), latent)
    measured = loss.measure(latent, None, Layout(), passing="clone")
    task = measured.passed.relu_().sum()
    (actual,) = gradient(loss.from_statistics(measured.statistics) + task, latent)
    close(actual, expected)


def test_charge_is_detached_and_in_the_latents_type() -> None:
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        latent = make_batch(2, 3, 4, dtype=dtype).requires_grad_()
        charge = AtomLoss(charge=2).measure(latent, None, Layout()).charge
        assert charge.dtype == dtype
        assert not charge.requires_grad
        expected = 2 * torch.sigmoid(latent[..., 2].detach().double()) - 1
        torch.testing.assert_close(charge, expected.to(dtype))


def test_detached_statistics_keep_their_numbers() -> None:
    fields = read(make_batch(2, 3, 4).requires_grad_())
    cut = fields.detach()
    for name in (*FIELDS, "count"):
        assert torch.equal(getattr(cut, name), getattr(fields, name))
        assert not getattr(cut, name).requires_grad


# Precision


@norms
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_statistics_are_accurate_to_float32(norm: int, dtype: torch.dtype) -> None:
    # 4,096 tokens with a mean: summed in half precision, no digit would be left.
    latent = (make_batch(3, 4096, 8, seed=14) + 2).to(dtype).requires_grad_()
    wide = latent.detach().double().requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        fused = read(latent, norm=norm)
    exact = F.form_atoms(wide, norm=norm)
    for name in FIELDS:
        assert getattr(fused, name).dtype == torch.float32
        torch.testing.assert_close(
            getattr(fused, name).double(), getattr(exact, name), rtol=2e-5, atol=1e-6
        )
    (grad,), (expected,) = gradient(weigh(fused), latent), gradient(weigh(exact), wide)
    assert grad.dtype == dtype
    rounding = torch.finfo(dtype).eps
    torch.testing.assert_close(grad.double(), expected, rtol=2 * rounding + 1e-4, atol=1e-7)


# Memory


SAMPLES, LENGTH, FEATURES = 13, 37, 29


def forbidden(shape: tuple[int, ...]) -> bool:
    """N x N, M x N x N or M x M x h, whole or flattened."""
    position = FEATURES - 1
    sizes = {
        *(LENGTH**2, SAMPLES * LENGTH**2, (SAMPLES * LENGTH) ** 2),
        *(SAMPLES**2 * FEATURES, SAMPLES**2 * position),
        *(SAMPLES * (SAMPLES - 1) * FEATURES, SAMPLES * (SAMPLES - 1) * position),
        *(SAMPLES * (SAMPLES - 1) // 2 * FEATURES, SAMPLES * (SAMPLES - 1) // 2 * position),
    }
    numel = torch.Size(shape).numel()
    return numel in sizes or numel > SAMPLES * LENGTH * FEATURES or shape.count(LENGTH) > 1


@norms
@pytest.mark.parametrize("scale", ["mean", "sum"])
@pytest.mark.parametrize("masked", [False, True], ids=["all", "masked"])
def test_default_path_forms_no_large_tensor(norm: int, scale: str, masked: bool) -> None:
    latent = make_batch(SAMPLES, LENGTH, FEATURES, dtype=torch.float32).requires_grad_()
    mask = torch.rand(SAMPLES, LENGTH) < 0.8 if masked else None
    with Allocations() as forward:
        loss = AtomLoss(norm, scale)(latent, mask)
    with Allocations() as backward:
        loss.backward()
    assert (SAMPLES, SAMPLES) in forward.shapes, "the recorder saw the pairs"
    assert tuple(latent.shape) in backward.shapes, "the recorder saw the gradient"
    assert not [shape for shape in forward.shapes + backward.shapes if forbidden(shape)]


def test_recorder_sees_the_large_tensors_of_other_ways() -> None:
    latent = make_batch(SAMPLES, LENGTH, FEATURES, dtype=torch.float32).requires_grad_()
    atoms = F.form_atoms(latent)
    with Allocations() as tokens:
        atoms.charge[0].unsqueeze(1) * atoms.charge[1]
    with Allocations() as differences:
        atoms.nucleus.unsqueeze(1) - atoms.nucleus
    with Allocations() as double_backward:
        torch.autograd.grad(AtomLoss()(latent), latent, create_graph=True)
    for recorded in (tokens, differences, double_backward):
        assert [shape for shape in recorded.shapes if forbidden(shape)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("samples", [2, 48])
@pytest.mark.parametrize("masked", [False, True], ids=["all", "masked"])
def test_little_is_kept_between_the_passes(dtype: torch.dtype, samples: int, masked: bool) -> None:
    latent = make_batch(samples, 64, 64, dtype=dtype).requires_grad_()
    mask = make_mask([64, *[40] * (samples - 1)], 64) if masked else None
    size = latent.nbytes
    with Allocations() as allocations:
        loss = AtomLoss()(latent, mask)
    assert loss.requires_grad
    assert allocations.kept(latent) < 0.05 * size
    with Allocations() as allocations:
        atoms = F.form_atoms(latent, mask)
        loss = F.pair_energy(atoms).mean()
    del atoms
    assert allocations.kept(latent) > size, "the recorder sees what plain autograd keeps"
