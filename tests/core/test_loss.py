"""AtomLoss against the quadruple loop; importance, compilation, refusals."""

from __future__ import annotations

import math
import shutil
from collections.abc import Iterator

import pytest
import reference
import torch
from loss_batches import BATCHES, batches, close, norms, same_loss, scales
from reference import make_batch, make_linear, make_mask
from torch import Tensor, nn

from atomsep import AtomLoss
from atomsep import functional as F
from atomsep.core.layout import Layout

# The quadruple loop


@norms
@scales
@batches
def test_equals_the_quadruple_loop(
    latent: Tensor, mask: Tensor | None, norm: int, scale: str
) -> None:
    same_loss(AtomLoss(norm, scale, softening=0), latent, mask, norm=norm, scale=scale)


@norms
@scales
@pytest.mark.parametrize(
    "weights",
    [
        *((1.0, 0.0, 1.0), (1.0, 1.0, 0.0), (1.0, 0.0, 0.0), (1.0, 0.3, 2.5)),
        *((0.0, 1.0, 1.0), (0.0, 0.3, 2.5), (2.5, 1.0, 1.0), (0.4, 0.0, 0.0)),
    ],
)
def test_ablations_equal_the_quadruple_loop(
    norm: int, scale: str, weights: tuple[float, float, float]
) -> None:
    latent, mask = BATCHES["ragged"]
    named = dict(zip(("energy", "neutrality", "occupancy"), weights, strict=True))
    settings = {"norm": norm, "scale": scale, **named}
    same_loss(AtomLoss(softening=0, **settings), latent, mask, **settings)


@norms
def test_softened_loss_equals_the_softened_loop(norm: int) -> None:
    latent, mask = BATCHES["holes"]
    default = {"norm": norm, "scale": "mean", "softening": F.DEFAULT_SOFTENING}
    same_loss(AtomLoss(norm), latent, mask, **default)


@norms
@pytest.mark.parametrize("charge", [2, -1])
def test_another_feature_as_charge_equals_the_loop(norm: int, charge: int) -> None:
    latent, mask = BATCHES["ragged"]
    others = [i for i in range(4) if i != charge % 4]
    loss = AtomLoss(norm, "sum", softening=0, charge=charge)
    same_loss(loss, latent, mask, norm=norm, score=lambda e: e[charge], place=lambda e: e[others])


def test_default_is_the_mean_scale_in_the_second_norm() -> None:
    latent = BATCHES["random"][0]
    default = AtomLoss()(latent)
    assert torch.equal(default, AtomLoss(2, "mean", 1, 1, F.DEFAULT_SOFTENING)(latent))
    tokens = latent.shape[1]
    close(AtomLoss(scale="sum")(latent), default * tokens**2, 1e-12)


@norms
@pytest.mark.parametrize("energy", [1.0, 0.4, 0.0])
def test_gradcheck_and_gradgradcheck(norm: int, energy: float) -> None:
    latent = make_batch(3, 4, 3, seed=6).requires_grad_()
    mask = make_mask([4, 2, 3], 4)
    loss = AtomLoss(norm, energy=energy)
    assert torch.autograd.gradcheck(loss, (latent, None))
    assert torch.autograd.gradcheck(loss, (latent, mask))
    assert torch.autograd.gradgradcheck(loss, (latent, mask))


def test_penalty_on_the_gradient_equals_that_of_the_loop() -> None:
    latent = make_batch(3, 4, 3, seed=7).requires_grad_()

    def penalty(loss: Tensor) -> Tensor:
        (grad,) = torch.autograd.grad(loss, latent, create_graph=True)
        return torch.autograd.grad(grad.square().sum(), latent)[0]

    loop = reference.loss(list(latent), 2, "mean", softening=F.DEFAULT_SOFTENING)
    close(penalty(AtomLoss()(latent)), penalty(loop))


def test_nothing_is_differentiated_without_need() -> None:
    latent = BATCHES["random"][0]
    assert not AtomLoss()(latent).requires_grad
    with torch.no_grad():
        assert not AtomLoss()(latent.clone().requires_grad_()).requires_grad


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_types(dtype: torch.dtype) -> None:
    latent = make_batch(3, 4, 5, dtype=dtype).requires_grad_()
    loss = AtomLoss()(latent)
    assert loss.dtype == torch.promote_types(dtype, torch.float32)
    loss.backward()
    assert latent.grad.dtype == dtype
    close(loss.double(), AtomLoss()(latent.detach().double()), 1e-6)


@norms
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("pairs", ["all", "sampled"])
def test_autocast_changes_nothing(norm: int, dtype: torch.dtype, pairs: str) -> None:
    results = []
    for enabled in (False, True):
        latent = make_batch(6, 7, 5, dtype=dtype).requires_grad_()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
            loss = AtomLoss(norm, pairs=pairs)(latent)
            loss.backward()  # in the context too, where careless training loops call it
        results.append((loss.detach(), latent.grad))
    for plain, under in zip(*results, strict=True):
        assert torch.equal(plain, under)


# Constraints alone


@norms
@pytest.mark.parametrize("pairs", ["all", "sampled"])
@pytest.mark.parametrize("twice", [False, True], ids=["once", "twice"])
def test_constraints_alone_do_not_move_positions(norm: int, pairs: str, twice: bool) -> None:
    """Not even where the energy is infinite: equal samples without softening."""
    latent = make_batch(1, 4, 3, seed=8).repeat(3, 1, 1).requires_grad_()
    loss = AtomLoss(norm, softening=0, pairs=pairs, energy=0)(latent)
    assert loss.isfinite()
    [grad] = torch.autograd.grad(loss, latent, create_graph=twice)
    assert grad.isfinite().all()
    assert (grad[..., 1:] == 0).all()
    assert (grad[..., 0] != 0).all()
    if twice:
        [grad] = torch.autograd.grad(grad.square().sum(), latent)
        assert grad.isfinite().all()


@norms
@pytest.mark.parametrize("pairs", ["all", "sampled"])
@pytest.mark.parametrize("measured", [None, 0.0, 0.5], ids=["later", "0", "another"])
@pytest.mark.parametrize("twice", [False, True], ids=["once", "twice"])
def test_a_weight_of_0_is_no_loss_even_where_the_energy_is_infinite(
    norm: int, pairs: str, measured: float | None, twice: bool
) -> None:
    """Whatever weight the loss was computed with first."""
    latent = make_batch(1, 4, 3, seed=8).repeat(3, 1, 1).requires_grad_()
    criterion = AtomLoss(norm, softening=0, pairs=pairs)
    statistics = criterion.measure(latent, None, Layout(), weight=measured).statistics
    assert not criterion.from_statistics(statistics, 0.5).isfinite()
    loss = criterion.from_statistics(statistics, 0.0)
    assert loss.item() == 0
    [grad] = torch.autograd.grad(loss, latent, create_graph=twice)
    assert torch.equal(grad, torch.zeros_like(latent))


def test_a_weight_of_the_energy_is_a_factor_of_sampled_pairs_too() -> None:
    latent = make_batch(5, 4, 3, seed=9)
    options = {"pairs": "sampled", "neutrality": 0, "occupancy": 0}
    close(AtomLoss(**options, energy=0.25)(latent), 0.25 * AtomLoss(**options)(latent))


def test_the_weight_of_the_energy_is_named() -> None:
    with pytest.raises(TypeError, match="positional argument"):
        AtomLoss(2, "mean", 1, 1, 0.01, 0, None, "all", None, 0, 0.5)


# Importance


@pytest.mark.parametrize("charge", [1, -1, lambda e: e[..., 1], lambda e: e[..., 1:2]])
def test_importance_is_the_charge_of_the_loops(charge) -> None:
    latent, mask = BATCHES["holes"]
    index = charge if isinstance(charge, int) else 1
    expected = (2 * torch.sigmoid(latent[..., index]) - 1) * mask
    close(AtomLoss(charge=charge).importance(latent, mask), expected)
    close(AtomLoss(charge=charge).measure(latent, mask, Layout()).charge, expected)


# A batch of one


@pytest.mark.parametrize("loss", [AtomLoss(), AtomLoss.paper(tokens=2)], ids=["all", "paper"])
def test_batch_of_one_has_constraints_but_no_energy(loss: AtomLoss) -> None:
    latent = make_batch(1, 4, 3, seed=15).requires_grad_()
    value = loss(latent)
    value.backward()
    assert latent.grad.isfinite().all()
    assert (latent.grad[..., 1:] == 0).all(), "positions matter to pairs alone"
    assert (latent.grad[..., 0] != 0).any()


def test_batch_of_one_without_constraints_is_zero_with_a_graph() -> None:
    for pairs in ("all", "sampled"):
        latent = make_batch(1, 4, 3).requires_grad_()
        value = AtomLoss(neutrality=0, occupancy=0, pairs=pairs)(latent)
        assert value.item() == 0
        value.backward()
        assert (latent.grad == 0).all()


# Compilation


@pytest.fixture
def fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def same_when_compiled(loss: AtomLoss, latent: Tensor, mask: Tensor | None, backend: str) -> None:
    compiled = torch.compile(loss, fullgraph=True, backend=backend)
    eager_latent, compiled_latent = (latent.clone().requires_grad_() for _ in range(2))
    expected, value = loss(eager_latent, mask), compiled(compiled_latent, mask)
    torch.testing.assert_close(value, expected)
    expected.backward()
    value.backward()
    torch.testing.assert_close(compiled_latent.grad, eager_latent.grad)


@norms
@pytest.mark.parametrize("masked", [False, True], ids=["all", "masked"])
@pytest.mark.parametrize("energy", [1.0, 0.0])
def test_compiled_in_one_graph(
    fresh_compiler: None, norm: int, masked: bool, energy: float
) -> None:
    mask = make_mask([6, 3, 1, 5], 6) if masked else None
    latent = make_batch(4, 6, 5, dtype=torch.float32)
    same_when_compiled(AtomLoss(norm, energy=energy), latent, mask, "aot_eager")


def test_compiled_with_learned_maps(fresh_compiler: None) -> None:
    score, place = (make_linear(5, size, dtype=torch.float32) for size in (1, 3))
    loss = AtomLoss(charge=score, position=place)
    same_when_compiled(loss, make_batch(4, 6, 5, dtype=torch.float32), None, "aot_eager")


@pytest.mark.skipif(shutil.which("g++") is None, reason="the compiler needs a C++ compiler")
def test_compiled_to_machine_code(fresh_compiler: None) -> None:
    latent = make_batch(4, 6, 5, dtype=torch.float32)
    same_when_compiled(AtomLoss(), latent, make_mask([6, 3, 1, 5], 6), "inductor")


# Refusals


@pytest.mark.parametrize(
    ("error", "message", "options"),
    [
        (ValueError, "norm must be 1 or 2, not 3", {"norm": 3}),
        (ValueError, 'scale must be "mean" or "sum", not \'x\'', {"scale": "x"}),
        (ValueError, "energy must be a weight of at least 0, not -1", {"energy": -1}),
        (ValueError, "energy must be a weight .*not nan", {"energy": math.nan}),
        (ValueError, "neutrality must be a weight of at least 0, not -1", {"neutrality": -1}),
        (ValueError, "neutrality must be a weight .*not nan", {"neutrality": math.nan}),
        (ValueError, "occupancy must be a weight of at least 0, not -0.5", {"occupancy": -0.5}),
        (ValueError, "occupancy must be a weight .*not inf", {"occupancy": math.inf}),
        (ValueError, "softening must be a finite length of at least 0, not -1", {"softening": -1}),
        (ValueError, "softening must be a finite length .*not inf", {"softening": math.inf}),
        (ValueError, 'pairs must be "all" or "sampled", not \'some\'', {"pairs": "some"}),
        (ValueError, "tokens must be None for all of them, or at least 1, not 0", {"tokens": 0}),
        (TypeError, "tokens must be .*not 1.5", {"tokens": 1.5}),
        (TypeError, "charge must be a feature index .* or a callable, not '0'", {"charge": "0"}),
        (TypeError, "charge must be a feature index .* or a callable, not None", {"charge": None}),
        (TypeError, r"charge .*\(an int\) or a callable, not True", {"charge": True}),
        (TypeError, r"position must be .*not \[1, 2\]", {"position": [1, 2]}),
        (TypeError, "position must be .*not 3", {"position": 3}),
    ],
)
def test_settings_are_refused(error, message: str, options: dict) -> None:
    with pytest.raises(error, match=message):
        AtomLoss(**options)


LATENT = torch.zeros(2, 3, 4)
REFUSED = {
    "integers": (TypeError, "floating point, but is torch.int32", LATENT.int(), {}, None),
    "complex": (TypeError, "floating point, but is torch.complex64", LATENT.cfloat(), {}, None),
    "one axis": (ValueError, r"must be \(M, N, h\).*\(4,\)", LATENT[0, 0], {}, None),
    "two axes": (ValueError, r"must be \(M, N, h\).*\(3, 4\)", LATENT[0], {}, None),
    "four axes": (
        ValueError,
        r"must be \(M, N, h\).*\(1, 2, 3, 4\); pass latent.flatten\(2\).transpose\(1, 2\)",
        LATENT[None],
        {},
        None,
    ),
    "no tokens": (ValueError, r"no tokens: shape \(2, 0, 4\)", LATENT[:, :0], {}, None),
    "no samples": (ValueError, r"no samples: shape \(0, 3, 4\)", LATENT[:0], {}, None),
    "one feature": (ValueError, "pass your own maps as charge=", LATENT[..., :1], {}, None),
    "charge": (ValueError, "charge=4 is out of range for a latent", LATENT, {"charge": 4}, None),
    "mask's numbers": (TypeError, "other numbers than 0 and 1.*> -1", LATENT, {}, -torch.eye(2, 3)),
    "mask's shape": (
        ValueError,
        r"mask has shape \(2, 4\), but the tokens have \(2, 3\)",
        LATENT,
        {},
        torch.ones(2, 4).bool(),
    ),
    "empty samples": (
        ValueError,
        "no token in sample 0, 1; drop such samples from the batch",
        LATENT,
        {},
        torch.zeros(2, 3).bool(),
    ),
    "score map": (
        ValueError,
        r"one score per token, shape \(2, 3\), but returned \(2, 3, 2\)",
        LATENT,
        {"charge": nn.Linear(4, 2)},
        None,
    ),
    "position map": (
        ValueError,
        r"one vector per token, shape \(2, 3, h'\), but returned \(2, 3\)",
        LATENT,
        {"position": lambda e: e.sum(-1)},
        None,
    ),
}


@pytest.mark.parametrize(
    ("error", "message", "latent", "options", "mask"), REFUSED.values(), ids=REFUSED
)
def test_batches_are_refused(error, message: str, latent: Tensor, options: dict, mask) -> None:
    with pytest.raises(error, match=message):
        AtomLoss(**options)(latent, mask)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int64, torch.uint8])
def test_masks_of_zeros_and_ones_are_those_of_booleans(dtype: torch.dtype) -> None:
    loss, latent = AtomLoss(), make_batch(3, 4, 4)
    real = torch.arange(4) < torch.tensor([4, 2, 3])[:, None]
    assert torch.equal(loss(latent, real.to(dtype)), loss(latent, real))
    assert not torch.equal(loss(latent, real), loss(latent))
    charges = loss.importance(latent, real.to(dtype))
    assert torch.equal(charges, loss.importance(latent, real))
    assert (charges[~real] == 0).all()


@pytest.mark.parametrize("position", [(1, 2, 0), (1, 2, 3)], ids=["score", "position"])
@pytest.mark.parametrize("loss", [AtomLoss(), AtomLoss(1), AtomLoss(charge=-1)])
def test_nan_in_a_real_token_is_never_hidden(loss: AtomLoss, position: tuple[int, ...]) -> None:
    latent = make_batch(3, 4, 4, dtype=torch.float32)
    latent[position] = math.nan
    assert loss(latent).isnan()


def test_settings_are_shown() -> None:
    shown = repr(AtomLoss(1, "sum", occupancy=0, energy=0.5, tokens=7, charge=nn.Linear(4, 1)))
    settings = ("norm=1", "scale='sum'", "occupancy=0", "energy=0.5", "tokens=7")
    for setting in (*settings, "(charge): Linear("):
        assert setting in shown
