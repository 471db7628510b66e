"""What holds for every method."""

from __future__ import annotations

import copy
import random

import pytest
import torch
from reference import make_batch, make_mask
from torch import Tensor

from atomsep.methods import METHODS, Method, make_method
from atomsep.methods.base import concatenate, cosine

NAMES = [name for name in METHODS if name not in ("plain", "mode-seeking")]
"""Those with a loss of a latent."""

LABELS = torch.tensor([0, 1, 0, 1])
methods = pytest.mark.parametrize("name", NAMES)


def make(name: str, features: int = 3, **options: object) -> Method:
    method = make_method(name, features=features, **options)
    assert isinstance(method, Method)
    return method


def call(method: Method, latent: Tensor, mask: Tensor | None = None) -> Tensor:
    """The loss with everything that any method needs; the second view is the first, changed."""
    labels = LABELS[: len(latent)].to(latent.device)
    return method(latent, labels, mask, latent.flip(2) + latent.detach())


# Every method


@methods
@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_the_loss_is_a_scalar_in_float32_or_float64(
    name: str, dtype: torch.dtype, autocast: bool
) -> None:
    latent = make_batch(4, 3, 3, seed=1, dtype=dtype).requires_grad_()
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        method = make(name)
        loss = call(method, latent)
        passed = method.pass_on(latent)
    expected = call(make(name), latent.detach().double())
    assert loss.dim() == 0
    assert loss.dtype == torch.promote_types(dtype, torch.float32)
    tolerance = {"rtol": 1e-4, "atol": 1e-5}
    if dtype in (torch.float32, torch.float64):  # the second view itself rounds in half precision
        torch.testing.assert_close(loss.double(), expected, **tolerance)
    assert passed.dtype == dtype
    assert passed.shape == latent.shape
    loss.backward()
    assert latent.grad.dtype == dtype


@methods
@pytest.mark.parametrize("garbage", [100.0, float("nan"), float("inf")])
def test_padding_has_no_influence_and_no_gradient(name: str, garbage: float) -> None:
    mask = make_mask([3, 1, 2, 3], 3)
    clean = make_batch(4, 3, 3, seed=2)
    dirty = clean.masked_fill(~mask.unsqueeze(-1), garbage)
    slopes = []
    for latent in (clean.requires_grad_(), dirty.requires_grad_()):
        loss = call(make(name), latent, mask)
        slopes.append((loss, *torch.autograd.grad(loss, latent)))
    torch.testing.assert_close(slopes[1][0], slopes[0][0])
    torch.testing.assert_close(slopes[1][1], slopes[0][1])
    assert torch.equal(slopes[1][1][~mask], torch.zeros_like(slopes[1][1][~mask]))
    assert slopes[1][1][mask].abs().max() > 0


@methods
def test_a_mask_without_padding_changes_nothing(name: str) -> None:
    latent = make_batch(4, 3, 3, seed=3)
    everything = torch.ones(4, 3, dtype=torch.bool)
    torch.testing.assert_close(call(make(name), latent, everything), call(make(name), latent))


@methods
@pytest.mark.parametrize(
    "latent",
    [
        make_batch(1, 3, 3, seed=4, dtype=torch.float32),
        make_batch(1, 3, 3, seed=4, dtype=torch.float32).repeat(4, 1, 1),
        torch.zeros(4, 3, 3),
        1e-30 * make_batch(4, 3, 3, seed=4, dtype=torch.float32),
        1e12 * make_batch(4, 3, 3, seed=4, dtype=torch.float32),
    ],
    ids=["one sample", "coincident", "zeros", "tiny", "huge"],
)
def test_value_and_gradient_are_finite_at_the_limits(name: str, latent: Tensor) -> None:
    latent = latent.clone()
    if name == "vicreg":  # squares of covariances grow with the fourth power
        latent.clamp_(-1e8, 1e8)
    latent.requires_grad_()
    loss = call(make(name), latent)
    (slope,) = torch.autograd.grad(loss, latent)
    assert loss.isfinite()
    assert slope.isfinite().all()


@methods
def test_the_gradient_of_zeros_is_bounded(name: str) -> None:
    latent = make_batch(4, 3, 3, seed=5, dtype=torch.float32)
    latent[0] = 0
    latent.requires_grad_()
    (slope,) = torch.autograd.grad(call(make(name), latent), latent)
    assert slope[0].abs().max() < 1e3


@methods
def test_the_global_generators_are_left_alone(name: str) -> None:
    options = {"pairs": "sampled", "tokens": 2} if name.startswith("atom") else {}
    before, python = torch.random.get_rng_state(), random.getstate()
    method = make(name, seed=7, **options)
    latent = make_batch(4, 3, 3, seed=6, dtype=torch.float32).requires_grad_()
    call(method, latent).backward()
    method.pass_on(latent)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert random.getstate() == python


@methods
def test_a_seed_fixes_the_numbers(name: str) -> None:
    options = {"pairs": "sampled", "tokens": 2} if name.startswith("atom") else {}
    latent = make_batch(4, 3, 3, seed=7)
    one, same, other = (call(make(name, seed=seed, **options), latent) for seed in (1, 1, 2))
    assert one == same
    assert (one != other) == (name.startswith("atom") or name == "vq")


@methods
def test_a_method_works_in_a_copy(name: str) -> None:
    latent = make_batch(4, 3, 3, seed=8)
    method = make(name)
    assert call(copy.deepcopy(method), latent) == call(method, latent)


@methods
def test_only_vq_changes_what_the_model_goes_on_with(name: str) -> None:
    latent = make_batch(4, 3, 3, seed=9)
    assert (make(name).pass_on(latent) is latent) == (name != "vq")


@methods
def test_missing_arguments_are_named(name: str) -> None:
    latent = make_batch(4, 3, 3, seed=10)
    method = make(name)
    if method.needs_labels:
        with pytest.raises(ValueError, match="compares classes: pass labels=, one per sample"):
            method(latent)
    elif method.second_view:
        with pytest.raises(ValueError, match=f"two views .* made by {method.second_view}"):
            method(latent, LABELS)
    else:
        assert method(latent).isfinite()


@methods
def test_what_does_not_fit_is_refused(name: str) -> None:
    latent, method = make_batch(4, 3, 3, seed=11), make(name)
    fits = {"labels": LABELS, "second": latent}
    with pytest.raises(ValueError, match=r"shape \(4,\), but the labels have shape \(4, 1\)"):
        method(latent, **(fits | {"labels": LABELS.unsqueeze(1)}))
    with pytest.raises(ValueError, match=r"the first has \(4, 3, 3\) and the second \(3, 3, 3\)"):
        method(latent, **(fits | {"second": latent[1:]}))
    with pytest.raises(ValueError, match=r"must be \(M, N, h\), but has shape \(4, 3\)"):
        method(latent[..., 0], **fits)
    with pytest.raises(TypeError, match="must be floating point"):
        method(latent.long(), **fits)
    with pytest.raises(TypeError, match="mask must be boolean"):
        method(latent, mask=torch.ones(4, 3), **fits)
    with pytest.raises(ValueError, match="leaves no token in sample 2"):
        method(latent, mask=make_mask([3, 1, 0, 3], 3), **fits)


def test_which_methods_need_what() -> None:
    made = {name: make(name) for name in NAMES}
    assert [name for name in NAMES if made[name].needs_labels] == ["hinge-1", "hinge-2", "rank-h"]
    views = {name: made[name].second_view for name in NAMES if made[name].second_view}
    assert views == {"simclr": "augmentation", "simcse": "dropout", "mixcse": "dropout"}


def test_the_interface_is_abstract() -> None:
    with pytest.raises(TypeError, match="abstract"):
        Method()


# The pieces


def test_a_sample_is_its_tokens_one_after_the_other() -> None:
    latent = make_batch(2, 3, 4, seed=12)
    rows = concatenate(latent)
    assert torch.equal(rows[1], torch.cat([latent[1, 0], latent[1, 1], latent[1, 2]]))
    transposed = latent.transpose(1, 2).contiguous().transpose(1, 2)  # as a channels-first layer
    assert torch.equal(concatenate(transposed), rows)


def test_cosine_equals_that_of_torch() -> None:
    one, two = make_batch(4, 6, seed=13), make_batch(5, 6, seed=14)
    expected = torch.nn.functional.cosine_similarity(one.unsqueeze(1), two, dim=2)
    torch.testing.assert_close(cosine(one, two), expected)
