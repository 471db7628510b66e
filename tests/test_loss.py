"""AtomLoss against the quadruple loop; maps, sampling, compilation, refusals."""

from __future__ import annotations

import copy
import math
import pickle
import shutil
from collections import Counter
from collections.abc import Iterator

import pytest
import reference
import torch
from reference import make_batch, make_linear, make_mask, real_tokens
from torch import Tensor, nn

import atomsep.loss
from atomsep import AtomLoss
from atomsep import functional as F
from atomsep.layout import Layout

HOLES = torch.tensor([[1, 1, 0, 1, 0], [0, 1, 1, 1, 1], [0, 0, 1, 0, 0], [1, 1, 1, 1, 1]]).bool()
BATCHES = {
    "random": (make_batch(4, 5, 4, seed=1), None),
    "ragged": (make_batch(4, 5, 4, seed=2), make_mask([5, 3, 1, 4], 5)),
    "holes": (make_batch(4, 5, 3, seed=3), HOLES),
    "tiny": (make_batch(2, 1, 2, seed=4), None),
    "one sample": (make_batch(1, 4, 3, seed=5), None),
}
batches = pytest.mark.parametrize(("latent", "mask"), BATCHES.values(), ids=BATCHES)
norms = pytest.mark.parametrize("norm", [1, 2])
scales = pytest.mark.parametrize("scale", ["mean", "sum"])


def close(actual: Tensor, expected: Tensor, tolerance: float = 1e-10) -> None:
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)


def same_loss(loss: AtomLoss, latent: Tensor, mask: Tensor | None, **settings: object) -> None:
    """The module and the loops agree in value and gradient."""
    fused = latent.clone().requires_grad_()
    looped = latent.clone().requires_grad_()
    value = loss(fused, mask)
    expected = reference.loss(real_tokens(looped, mask), **settings)
    assert value.dim() == 0
    close(value, expected)
    (grad,) = torch.autograd.grad(value, fused)
    (expected_grad,) = torch.autograd.grad(expected, looped)
    close(grad, expected_grad)


# The quadruple loop


@norms
@scales
@batches
def test_equals_the_quadruple_loop(
    latent: Tensor, mask: Tensor | None, norm: int, scale: str
) -> None:
    same_loss(AtomLoss(norm, scale, softening=0), latent, mask, norm=norm, scale=scale)


@norms
@pytest.mark.parametrize("weights", [(0.0, 1.0), (1.0, 0.0), (0.0, 0.0), (0.3, 2.5)])
def test_ablations_equal_the_quadruple_loop(norm: int, weights: tuple[float, float]) -> None:
    latent, mask = BATCHES["ragged"]
    neutrality, occupancy = weights
    settings = {"norm": norm, "scale": "sum", "neutrality": neutrality, "occupancy": occupancy}
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
def test_gradcheck_and_gradgradcheck(norm: int) -> None:
    latent = make_batch(3, 4, 3, seed=6).requires_grad_()
    mask = make_mask([4, 2, 3], 4)
    loss = AtomLoss(norm)
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


# Learned maps


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


# Importance


@pytest.mark.parametrize("charge", [1, -1, lambda e: e[..., 1], lambda e: e[..., 1:2]])
def test_importance_is_the_charge_of_the_loops(charge) -> None:
    latent, mask = BATCHES["holes"]
    index = charge if isinstance(charge, int) else 1
    expected = (2 * torch.sigmoid(latent[..., index]) - 1) * mask
    close(AtomLoss(charge=charge).importance(latent, mask), expected)
    close(AtomLoss(charge=charge).measure(latent, mask, Layout()).charge, expected)


# Sampling


def draw(loss: AtomLoss, latent: Tensor, times: int) -> list[float]:
    return [loss(latent).item() for _ in range(times)]


def test_paper_setting() -> None:
    loss = AtomLoss.paper()
    assert (loss.pairs, loss.tokens, loss.terms.scale) == ("sampled", 100, "sum")
    assert (loss.terms.neutrality, loss.terms.occupancy) == (1, 1)
    assert AtomLoss.paper(1, tokens=7).terms.norm == 1
    assert AtomLoss.paper(1, tokens=7).tokens == 7


def test_sampling_leaves_the_global_generator_alone() -> None:
    latent = make_batch(5, 9, 3)
    before = torch.get_rng_state()
    draw(AtomLoss.paper(tokens=4), latent, 3)
    assert torch.equal(torch.get_rng_state(), before)


def test_the_global_generator_leaves_sampling_alone() -> None:
    latent = make_batch(5, 9, 3)
    with torch.random.fork_rng():
        torch.manual_seed(1)
        first = draw(AtomLoss.paper(tokens=4), latent, 3)
        torch.manual_seed(2)
        assert draw(AtomLoss.paper(tokens=4), latent, 3) == first


def test_seeds_repeat_and_differ() -> None:
    latent = make_batch(7, 9, 3)
    sequences = [draw(AtomLoss.paper(tokens=4, seed=seed), latent, 4) for seed in (0, 1, 2, -5)]
    assert draw(AtomLoss.paper(tokens=4, seed=1), latent, 4) == sequences[1]
    values = [value for sequence in sequences for value in sequence]
    assert len(set(values)) == len(values), "every draw of every seed is another"


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda loss: pickle.loads(pickle.dumps(loss))])
def test_copies_go_on_where_the_original_was(copied) -> None:
    latent = make_batch(7, 9, 3)
    loss = AtomLoss.paper(tokens=4)
    draw(loss, latent, 3)
    twin = copied(loss)
    assert draw(twin, latent, 3) == draw(loss, latent, 3)
    draw(twin, latent, 1)
    later = draw(loss, latent, 2)
    assert draw(twin, latent, 1) == later[1:], "and draw on their own from then on"


def test_sampled_pairs_are_uniform_over_different_samples(monkeypatch) -> None:
    samples, draws = 4, 1200
    drawn = Counter()

    def record(statistics, terms, pairs, weight):
        assert len(pairs[0]) == len(pairs[1]) == samples
        drawn.update(zip(pairs[0].tolist(), pairs[1].tolist(), strict=True))
        return statistics.nucleus.sum()

    monkeypatch.setattr(atomsep.loss, "total_loss", record)
    draw(AtomLoss(pairs="sampled"), make_batch(samples, 2, 2), draws)
    possible = {(a, b) for a in range(samples) for b in range(samples) if a != b}
    assert set(drawn) == possible
    expected = samples * draws / len(possible)
    deviation = sum((count - expected) ** 2 / expected for count in drawn.values())
    assert deviation < 31.3, "chi-squared of 11 degrees of freedom, 1 in 1,000"


@norms
def test_sampled_pairs_average_to_the_full_loss(norm: int) -> None:
    latent = make_batch(5, 4, 3, seed=10)
    full = AtomLoss(norm)(latent).item()
    values = torch.tensor(draw(AtomLoss(norm, pairs="sampled"), latent, 1500))
    error = values.std().item() / math.sqrt(len(values))
    assert error < 0.05 * abs(full), "enough draws to tell"
    assert abs(values.mean().item() - full) < 3.5 * error


def test_gradient_of_sampled_pairs_averages_to_the_full_gradient() -> None:
    latent = make_batch(4, 3, 3, seed=11).requires_grad_()
    (full,) = torch.autograd.grad(AtomLoss()(latent), latent)
    loss = AtomLoss(pairs="sampled")
    grads = torch.stack([torch.autograd.grad(loss(latent), latent)[0] for _ in range(600)])
    error = grads.std(0) / math.sqrt(len(grads))
    assert ((grads.mean(0) - full).abs() < 4.5 * error + 1e-12).all()


def which_tokens(loss: AtomLoss, mask: Tensor | None, samples: int, length: int) -> Tensor:
    """Which tokens a forward takes, `(M, N)`: protons at the corners of a simplex tell."""
    latent = torch.eye(length).expand(samples, -1, -1)
    latent = torch.cat([torch.full((samples, length, 1), 99.0), latent], -1)
    statistics = loss.measure(latent, mask, Layout()).statistics
    return (statistics.nucleus * statistics.count.unsqueeze(1)).round(decimals=4)


def test_drawn_tokens_are_real_and_different() -> None:
    mask = make_mask([8, 5, 3, 2], 8)
    loss = AtomLoss(tokens=3)
    seen = torch.zeros(4, 8)
    for _ in range(300):
        taken = which_tokens(loss, mask, 4, 8)
        assert ((taken == 0) | (taken == 1)).all(), "each at most once"
        assert (taken.sum(1) == torch.tensor([3, 3, 3, 2])).all()
        assert (taken[~mask] == 0).all()
        seen += taken
    share = seen / 300
    for sample, length in enumerate([8, 5, 3, 2]):
        expected = min(1, 3 / length)
        error = math.sqrt(expected * (1 - expected) / 300)
        assert ((share[sample, :length] - expected).abs() <= 4 * error + 1e-9).all()


def test_samples_draw_their_tokens_independently() -> None:
    taken = which_tokens(AtomLoss(tokens=10), None, 6, 20)
    assert len({tuple(row.tolist()) for row in taken}) == 6


def test_drawn_tokens_give_the_loss_and_gradient_of_these_alone() -> None:
    length, loss = 6, AtomLoss(tokens=2)
    taken = which_tokens(copy.deepcopy(loss), None, 3, length).bool()
    latent = make_batch(3, length, 4, seed=12).requires_grad_()
    expected = AtomLoss()(torch.stack([e[t] for e, t in zip(latent, taken, strict=True)]))
    value = loss(latent)
    close(value, expected)
    (grad,) = torch.autograd.grad(value, latent)
    close(grad, torch.autograd.grad(expected, latent)[0])
    assert (grad[~taken] == 0).all()
    assert (grad[taken] != 0).any(-1).all()


def test_charges_of_all_tokens_are_shown_when_some_are_drawn() -> None:
    latent = make_batch(3, 6, 4, seed=13)
    charge = AtomLoss(tokens=2).measure(latent, None, Layout()).charge
    close(charge, F.form_atoms(latent).charge, 1e-6)


def test_fewer_tokens_than_asked_for_are_all_taken() -> None:
    latent = make_batch(5, 7, 3, seed=14)
    every = draw(AtomLoss(scale="sum", pairs="sampled"), latent, 3)
    assert draw(AtomLoss.paper(), latent, 3) == every
    assert draw(AtomLoss.paper(tokens=7), latent, 3) == every
    assert draw(AtomLoss.paper(tokens=6), latent, 3) != every


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
def test_compiled_in_one_graph(fresh_compiler: None, norm: int, masked: bool) -> None:
    mask = make_mask([6, 3, 1, 5], 6) if masked else None
    latent = make_batch(4, 6, 5, dtype=torch.float32)
    same_when_compiled(AtomLoss(norm), latent, mask, "aot_eager")


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
        (ValueError, "neutrality must be a weight of at least 0, not -1", {"neutrality": -1}),
        (ValueError, "neutrality must be a weight .*not nan", {"neutrality": math.nan}),
        (ValueError, "occupancy must be a weight of at least 0, not -0.5", {"occupancy": -0.5}),
        (ValueError, "occupancy must be a weight .*not inf", {"occupancy": math.inf}),
        (ValueError, "softening must be a length of at least 0, not -1", {"softening": -1}),
        (ValueError, "softening must be a length .*not inf", {"softening": math.inf}),
        (ValueError, 'pairs must be "all" or "sampled", not \'some\'', {"pairs": "some"}),
        (ValueError, "tokens must be None for all of them, or at least 1, not 0", {"tokens": 0}),
        (TypeError, "tokens must be .*not 1.5", {"tokens": 1.5}),
        (TypeError, "charge must be a feature index or a callable, not '0'", {"charge": "0"}),
        (TypeError, "charge must be a feature index or a callable, not None", {"charge": None}),
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
    "four axes": (ValueError, r"must be \(M, N, h\).*\(1, 2, 3, 4\)", LATENT[None], {}, None),
    "no tokens": (ValueError, r"no tokens: shape \(2, 0, 4\)", LATENT[:, :0], {}, None),
    "no samples": (ValueError, r"no samples: shape \(0, 3, 4\)", LATENT[:0], {}, None),
    "one feature": (ValueError, "pass maps of your own as charge=", LATENT[..., :1], {}, None),
    "charge": (ValueError, "charge=4 is no feature of a latent", LATENT, {"charge": 4}, None),
    "mask's type": (TypeError, "must be boolean.*int64", LATENT, {}, torch.ones(2, 3).long()),
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
        r"one score a token, shape \(2, 3\), but gave \(2, 3, 2\)",
        LATENT,
        {"charge": nn.Linear(4, 2)},
        None,
    ),
    "position map": (
        ValueError,
        r"one vector a token, shape \(2, 3, h'\), but gave \(2, 3\)",
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


@pytest.mark.parametrize("position", [(1, 2, 0), (1, 2, 3)], ids=["score", "position"])
@pytest.mark.parametrize("loss", [AtomLoss(), AtomLoss(1), AtomLoss(charge=-1)])
def test_nan_in_a_real_token_is_never_hidden(loss: AtomLoss, position: tuple[int, ...]) -> None:
    latent = make_batch(3, 4, 4, dtype=torch.float32)
    latent[position] = math.nan
    assert loss(latent).isnan()


def test_settings_are_shown() -> None:
    shown = repr(AtomLoss(1, "sum", occupancy=0, tokens=7, charge=nn.Linear(4, 1)))
    for setting in ("norm=1", "scale='sum'", "occupancy=0", "tokens=7", "(charge): Linear("):
        assert setting in shown
