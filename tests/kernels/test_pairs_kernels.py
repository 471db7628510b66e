"""The loss over all pairs and its gradient: the kernels against the plain path in float64."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest
import torch

from atomsep import kernels, use_kernels
from atomsep.kernels import blocks, pairs
from atomsep.pairs import Terms, total_loss
from atomsep.statistics import Statistics

pytestmark = pytest.mark.usefixtures("poisoned_memory")

on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="large sizes need a GPU")


NAMES = [field.name for field in fields(Statistics)]


def draw(samples: int, width: int, seed: int = 0) -> Statistics:
    """Statistics in float64 that keep their values in float32."""
    generator = torch.Generator().manual_seed(seed)
    count = torch.randint(3, 9, (samples,), generator=generator).float()
    protons, electrons = torch.rand(2, samples, generator=generator) * count
    square = torch.rand(samples, generator=generator) * count
    radius = torch.rand(samples, generator=generator)
    nucleus = torch.randn(samples, width, generator=generator)
    drawn = protons, electrons, protons - electrons, square, count, radius, nucleus
    return Statistics(*(field.double() for field in drawn))


def check(statistics: Statistics, terms: Terms, device: torch.device) -> None:
    leaves = Statistics(*(field.clone().requires_grad_() for field in statistics.fields()))
    with use_kernels("torch"):
        expected = total_loss(leaves, terms)
    wanted = [getattr(leaves, name) for name in NAMES if name != "count"]
    gradients = torch.autograd.grad(expected, wanted, torch.tensor(0.7).double())

    narrow = Statistics(*(field.float().to(device) for field in statistics.fields()))
    assert kernels.supports_pairs(narrow)
    alone, none = kernels.pairs_forward(narrow, terms, False)
    loss, shares = kernels.pairs_forward(narrow, terms, True)
    assert none is None
    assert loss.shape == ()
    assert torch.equal(alone, loss)
    torch.testing.assert_close(loss.double().cpu(), expected.detach(), rtol=1e-5, atol=1e-12)
    assert shares is not None
    grad = torch.tensor(0.7, device=device)
    got = dict(zip(NAMES, kernels.pairs_backward(shares, grad, len(statistics.count)), strict=True))
    assert got.pop("count") is None
    for (name, value), gradient in zip(got.items(), gradients, strict=True):
        assert value is not None
        assert value.shape == gradient.shape
        error = (value.double().cpu() - gradient).norm()
        assert error <= 1e-4 * gradient.norm(), name


@pytest.mark.parametrize("norm", [1, 2])
@pytest.mark.parametrize("scale", ["mean", "sum"])
@pytest.mark.parametrize(
    ("samples", "width"), [(1, 1), (2, 1), (3, 2), (5, 3), (17, 33), (33, 64), (40, 65)]
)
def test_odd_shapes(samples: int, width: int, norm: int, scale: str, device: torch.device) -> None:
    check(draw(samples, width), Terms(norm, 1e-2, scale, 0.7, 1.3), device)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "sizes", [(4, 8, 4, 2, 1, 1), (8, 4, 2, 3, 1, 1), (16, 4, 8, 1, 2, 1), (4, 4, 1, 3, 1, 1)]
)
def test_shares_of_rows(
    sizes: tuple[int, ...], device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any cut of the matrix of pairs gives the same sums."""
    monkeypatch.setattr(pairs, "pair_blocks", lambda *shape: blocks.PairBlocks(*sizes))
    check(draw(13, 9), Terms(2, 1e-2, "mean", 1.0, 1.0), device)


@pytest.mark.parametrize("norm", [1, 2])
def test_coincident_nuclei(norm: int, device: torch.device) -> None:
    statistics = draw(6, 4)
    nucleus = statistics.nucleus.clone()
    nucleus[1] = nucleus[0]
    nucleus[3] = nucleus[2] + 1e-3
    check(replace(statistics, nucleus=nucleus), Terms(norm, 1e-2, "mean", 1.0, 1.0), device)  # type: ignore[arg-type]


def test_far_from_the_origin_close_to_each_other(device: torch.device) -> None:
    """Where a² + b² - 2ab would leave no digit."""
    statistics = draw(5, 3)
    nucleus = (1000 + 0.01 * statistics.nucleus).float().double()
    check(replace(statistics, nucleus=nucleus), Terms(2, 1e-3, "mean", 1.0, 1.0), device)


def test_without_softening(device: torch.device) -> None:
    check(draw(7, 5), Terms(2, 0.0, "mean", 0.0, 0.0), device)


@on_gpu
@pytest.mark.parametrize("norm", [1, 2])
@pytest.mark.parametrize(("samples", "width"), [(128, 63), (300, 255), (1100, 768), (4200, 40)])
def test_large_shapes(samples: int, width: int, norm: int, device: torch.device) -> None:
    check(draw(samples, width), Terms(norm, 1e-2, "mean", 1.0, 1.0), device)  # type: ignore[arg-type]
