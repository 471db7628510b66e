"""The loss over all pairs and its gradient: the kernels against autograd in float64."""

from __future__ import annotations

import pytest
import torch

from atomsep.core import kernels, plain, reference
from atomsep.core.kernels import blocks, pairs
from atomsep.core.statistics import Statistics, Terms

pytestmark = pytest.mark.usefixtures("poisoned_memory")

on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="large sizes need a GPU")


def draw(samples: int, width: int, seed: int = 0) -> Statistics:
    """Statistics in float64 that keep their values in float32."""
    generator = torch.Generator().manual_seed(seed)
    count = torch.randint(3, 9, (samples,), generator=generator).float()
    protons, electrons = torch.rand(2, samples, generator=generator) * count
    square = torch.rand(samples, generator=generator) * count
    radius = torch.rand(samples, generator=generator)
    nucleus = torch.randn(samples, width, generator=generator)
    table = Statistics.pack(protons, electrons, protons - electrons, square, radius, nucleus)
    return Statistics(table.double(), count.double())


def check(statistics: Statistics, terms: Terms, device: torch.device) -> None:
    leaf = statistics.table.clone().requires_grad_()
    expected = reference.pair_loss(Statistics(leaf, statistics.count), terms)
    [gradient] = torch.autograd.grad(expected, leaf)

    table, count = statistics.table.float().to(device), statistics.count.float().to(device)
    alone, none = kernels.pair_loss(table, count, terms, 1.0, False)
    loss, slopes = kernels.pair_loss(table, count, terms, 1.0, True)
    assert none is None
    assert loss.shape == ()
    assert torch.equal(alone, loss)
    torch.testing.assert_close(loss.double().cpu(), expected.detach(), rtol=1e-5, atol=1e-12)
    assert slopes is not None
    assert slopes.shape == gradient.shape
    for columns in (*range(5), slice(5, None)):
        error = (slopes[:, columns].double().cpu() - gradient[:, columns]).norm()
        assert error <= 1e-4 * gradient[:, columns].norm(), columns


def test_a_weight_is_a_factor_of_both(device: torch.device) -> None:
    table, count = (tensor.float().to(device) for tensor in (draw(5, 3).table, draw(5, 3).count))
    terms = Terms(2, 1e-2, "mean", 0.7, 1.3)
    loss, slopes = kernels.pair_loss(table, count, terms, 1.0, True)
    weighted, weighted_slopes = kernels.pair_loss(table, count, terms, 2.0, True)
    torch.testing.assert_close(weighted, 2 * loss)
    torch.testing.assert_close(weighted_slopes, 2 * slopes)


@pytest.mark.parametrize("norm", [1, 2])
@pytest.mark.parametrize("scale", ["mean", "sum"])
@pytest.mark.parametrize(("samples", "width"), [(1, 1), (2, 1), (3, 2), (5, 3), (17, 33)])
def test_odd_shapes(samples: int, width: int, norm: int, scale: str, device: torch.device) -> None:
    check(draw(samples, width), Terms(norm, 1e-2, scale, 0.7, 1.3), device)  # type: ignore[arg-type]


@pytest.mark.parametrize(("norm", "scale"), [(1, "mean"), (2, "sum")])
@pytest.mark.parametrize(("samples", "width"), [(33, 64), (40, 65), (20, 300)])
def test_wide_shapes(samples: int, width: int, norm: int, scale: str, device: torch.device) -> None:
    """Several blocks of samples or chunks of features: slow to interpret."""
    check(draw(samples, width), Terms(norm, 1e-2, scale, 0.7, 1.3), device)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "sizes",
    [
        *((4, 8, 4, 1), (8, 4, 2, 1), (16, 4, 8, 2), (4, 4, 1, 1), (1, 8, 16, 1)),
        *((4, 4, 4, 1, 2), (4, 2, 4, 1, 3), (16, 2, 8, 1, 9), (1, 8, 16, 1, 8)),
    ],
)
def test_blocks_of_rows(
    sizes: tuple[int, ...], device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any cut of the matrix of pairs gives the same sums."""
    monkeypatch.setattr(pairs, "pair_blocks", lambda *shape: blocks.PairBlocks(*sizes))
    monkeypatch.setattr(pairs, "GATHERED", 16)
    pairs._plan.cache_clear()
    check(draw(13, 9), Terms(2, 1e-2, "mean", 1.0, 1.0), device)
    check(draw(13, 9), Terms(1, 1e-2, "sum", 1.0, 1.0), device)
    pairs._plan.cache_clear()


@pytest.mark.parametrize("norm", [1, 2])
@pytest.mark.parametrize("scale", ["mean", "sum"])
@pytest.mark.parametrize("energy", [0.0, 0.4])
def test_weights_of_the_energy(
    norm: int, scale: str, energy: float, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one program, in several, and where the others are shared between programs."""
    terms = Terms(norm, 1e-2, scale, 0.7, 1.3, energy)  # type: ignore[arg-type]
    check(draw(5, 3), terms, device)
    monkeypatch.setattr(pairs, "pair_blocks", lambda *shape: blocks.PairBlocks(4, 2, 4, 1, 3))
    pairs._plan.cache_clear()
    check(draw(13, 9), terms, device)
    pairs._plan.cache_clear()


def test_constraints_alone_read_no_pair(device: torch.device) -> None:
    """Neither an infinite energy nor NaN in a nucleus reaches the constraints."""
    statistics = draw(6, 4)
    terms = Terms(2, 0.0, "mean", 0.7, 1.3, 0.0)
    table, count = statistics.table.float().to(device), statistics.count.float().to(device)
    expected, slopes = kernels.pair_loss(table, count, terms, 1.0, True)
    table[1, 5:] = table[0, 5:]
    table[2, 5:] = torch.nan
    assert torch.equal(kernels.pair_loss(table, count, terms, 1.0, True)[0], expected)
    assert torch.equal(kernels.pair_loss(table, count, terms, 1.0, True)[1], slopes)


@pytest.mark.parametrize("norm", [1, 2])
def test_coincident_nuclei(norm: int, device: torch.device) -> None:
    statistics = draw(6, 4)
    nucleus = statistics.nucleus  # a view of the table
    nucleus[1] = nucleus[0]
    nucleus[3] = nucleus[2] + 1e-3
    check(statistics, Terms(norm, 1e-2, "mean", 1.0, 1.0), device)  # type: ignore[arg-type]


def test_far_from_the_origin_close_to_each_other(device: torch.device) -> None:
    """Where a² + b² - 2ab would leave no digit."""
    statistics = draw(5, 3)
    statistics.nucleus[:] = (1000 + 0.01 * statistics.nucleus).float().double()
    check(statistics, Terms(2, 1e-3, "mean", 1.0, 1.0), device)


def test_without_softening(device: torch.device) -> None:
    check(draw(7, 5), Terms(2, 0.0, "mean", 0.0, 0.0), device)


def check_rows(
    sizes: tuple[int, ...], height: int, width: int, terms: Terms, device: torch.device
) -> None:
    """Ranks with so many samples each: what they contribute adds up to the loss of all samples.

    `reference.pair_loss` knows neither rows nor blocks: it gets the samples alone.
    """
    samples = sum(sizes)
    statistics = draw(samples, width)
    leaf = statistics.table.clone().requires_grad_()
    expected = 0.7 * reference.pair_loss(Statistics(leaf, statistics.count), terms)
    [gradient] = torch.autograd.grad(expected, leaf)
    absent = torch.arange(height) >= torch.tensor(sizes).unsqueeze(1)
    table, count = torch.zeros(len(sizes) * height, 5 + width), torch.ones(len(sizes) * height)
    table[~absent.flatten()] = statistics.table.float()
    count[~absent.flatten()] = statistics.count.float()
    given = [tensor.to(device) for tensor in (table, count)]
    rest = absent.flatten().to(device), torch.tensor(float(samples), device=device)
    losses, rows = [], []
    for rank, size in enumerate(sizes):
        own = slice(rank * height, rank * height + size)
        loss, slopes = kernels.pair_loss_of_rows(*given, terms, 0.7, own, *rest)
        assert slopes.shape == (size, 5 + width)
        plainly = plain.pair_loss_of_rows(*given, terms, 0.7, own, *rest)
        torch.testing.assert_close((loss, slopes), plainly, rtol=1e-4, atol=1e-5)
        losses.append(loss)
        rows.append(slopes)
    total = torch.stack(losses).sum().double().cpu()
    torch.testing.assert_close(total, expected.detach(), rtol=1e-5, atol=1e-12)
    found = torch.cat(rows).double().cpu()
    for columns in (*range(5), slice(5, None)):
        error = (found[:, columns] - gradient[:, columns]).norm()
        assert error <= 1e-4 * gradient[:, columns].norm(), columns


@pytest.mark.parametrize("norm", [1, 2])
@pytest.mark.parametrize("scale", ["mean", "sum"])
@pytest.mark.parametrize("sizes", [(3, 1, 4), (2, 0, 5), (1, 0), (4, 4)], ids=str)
def test_rows_of_one_rank(
    sizes: tuple[int, ...], norm: int, scale: str, device: torch.device
) -> None:
    check_rows(sizes, 6, 3, Terms(norm, 1e-2, scale, 0.7, 1.3, 0.4), device)  # type: ignore[arg-type]


def test_rows_in_any_cut(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Several programs per rank, which share the others; the constraints alone."""
    for cut in ((4, 2, 4, 1, 3), (2, 4, 8, 1, 1)):
        monkeypatch.setattr(pairs, "pair_blocks", lambda *shape, cut=cut: blocks.PairBlocks(*cut))
        monkeypatch.setattr(pairs, "GATHERED", 16)
        pairs._plan.cache_clear()
        for energy in (0.4, 0.0):
            check_rows((5, 1, 7), 8, 9, Terms(2, 1e-2, "mean", 1.0, 1.0, energy), device)
    pairs._plan.cache_clear()


def test_few_rows_against_many_fill_the_chip() -> None:
    assert blocks.pair_blocks(1024, 768, 1024) == blocks.PairBlocks(16, 64, 16, 4, 8)
    few = blocks.pair_blocks(16_384, 768, 16)
    assert few.splits * blocks.ceil_div(16, few.own) == blocks.WAVE // 2


SIZES = [(65, 300), (128, 63), (300, 255), (1100, 768), (2047, 3), (2100, 40), (4200, 40)]


@on_gpu
@pytest.mark.parametrize("norm", [1, 2])
@pytest.mark.parametrize(("samples", "width"), SIZES)
def test_large_shapes(samples: int, width: int, norm: int, device: torch.device) -> None:
    check(draw(samples, width), Terms(norm, 1e-2, "mean", 1.0, 1.0), device)  # type: ignore[arg-type]


@on_gpu
@pytest.mark.parametrize(
    ("sizes", "height", "width"), [((300, 17, 512), 512, 255), ((16, 9), 32, 768)]
)
def test_large_rows_of_one_rank(
    sizes: tuple[int, ...], height: int, width: int, device: torch.device
) -> None:
    check_rows(sizes, height, width, Terms(2, 1e-2, "mean", 1.0, 1.0), device)
