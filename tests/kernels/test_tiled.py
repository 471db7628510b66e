"""Large contiguous latents, in tiles that both passes read once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from cases import Case, check
from torch import Tensor

from atomsep import kernels
from atomsep.kernels import backward, forward, tiled
from atomsep.kernels.tiled import TiledBackward, TiledForward
from atomsep.layout import Layout
from atomsep.slabs import forward_slabs
from atomsep.statistics import Reading


def _runs() -> bool:
    if not torch.cuda.is_available() or tiled._version() not in tiled.VERSIONS:
        return False
    return torch.cuda.get_device_capability()[0] == 9


pytestmark = pytest.mark.usefixtures("poisoned_memory")
on_gpu = pytest.mark.skipif(not _runs(), reason="needs a Hopper GPU and Triton 3.6")
IMAGES = Layout("channels_first")


def _clear() -> None:
    forward._plan.cache_clear()
    backward._launch.cache_clear()


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter[str]]:
    """However small a latent is, it is read in tiles; and how often one was."""
    made: Counter[str] = Counter()

    def counted(kind: type) -> None:
        launch = kind.__call__

        def count(self: object, *tensors: Any) -> None:
            made[kind.__name__] += 1
            launch(self, *tensors)

        monkeypatch.setattr(kind, "__call__", count)

    counted(TiledForward)
    counted(TiledBackward)
    monkeypatch.setattr(tiled, "SMALLEST", 0)
    monkeypatch.setattr(tiled, "ALLOWED", True)
    _clear()
    yield made
    _clear()


def _latent(samples: int, features: int, tokens: int, seed: int = 0) -> Tensor:
    generator = torch.Generator("cuda").manual_seed(seed)
    made = torch.randn(samples, features, 1, tokens, generator=generator, device="cuda")
    return (made + 0.3).bfloat16()


def _measure(latent: Tensor, feature: int = -1) -> tuple[Tensor, Tensor, Tensor]:
    reading = Reading(IMAGES, feature, 2)
    return kernels.measure_forward(latent, None, None, _count(latent), reading, False)[1:]


def _count(latent: Tensor) -> Tensor:
    return torch.full((latent.shape[0],), float(latent[0, 0].numel()), device=latent.device)


@on_gpu
@pytest.mark.parametrize("feature", [0, 37, -1])
@pytest.mark.parametrize(
    ("features", "tokens"),
    [(256, 520), (256, 1024), (256, 1032), (256, 3136), (256, 8192), (128, 1032), (128, 3136)],
)
@pytest.mark.parametrize("samples", [1, 2, 19])
def test_passes_against_float64(
    samples: int,
    features: int,
    tokens: int,
    feature: int,
    calls: Counter[str],
    device: torch.device,
) -> None:
    check(Case(samples, tokens, features, "image", torch.bfloat16, 2, feature), device)
    assert calls.keys() == {"TiledForward", "TiledBackward"}


@on_gpu
@pytest.mark.parametrize("features", [128, 256])
def test_a_copy(features: int, calls: Counter[str], device: torch.device) -> None:
    for samples, tokens in ((3, 3136), (40, 1032)):
        check(Case(samples, tokens, features, "image", torch.bfloat16, copy=True), device)
    assert calls == {"TiledForward": 2, "TiledBackward": 2}


@on_gpu
@pytest.mark.parametrize("features", [128, 256])
def test_a_copy_of_many_rounds(features: int, calls: Counter[str]) -> None:
    """Slots are filled again and again while their copies are written."""
    latent = _latent(300, features, 3136)
    expected = _measure(latent)
    known = latent, None, None, _count(latent), Reading(IMAGES, -1, 2)
    for _ in range(5):
        copied, *got = kernels.measure_forward(*known, True)
        assert copied is not None
        assert torch.equal(copied, latent)
        assert all(map(torch.equal, got, expected))
    assert calls["TiledForward"] == 6


@on_gpu
@pytest.mark.parametrize("case", [
    Case(3, 1032, 256, "image", torch.bfloat16, passed=None),
    Case(3, 1032, 256, "image", torch.bfloat16, passed="other"),
], ids=str)  # fmt: skip
def test_forward_alone(case: Case, calls: Counter[str], device: torch.device) -> None:
    """No gradient arrives, or one that lies otherwise: the backward pass is another."""
    check(case, device)
    assert calls.keys() == {"TiledForward"}


@on_gpu
@pytest.mark.parametrize("case", [
    Case(3, 1032, 256, "image", torch.bfloat16, masked=True),
    Case(3, 1032, 256, "planes", torch.bfloat16, skip=8),
    Case(3, 1032, 256, "image", torch.bfloat16, norm=1),
    Case(3, 1032, 256, "image", torch.bfloat16, feature=None),
    Case(3, 1031, 256, "image", torch.bfloat16),
    Case(3, 1032, 256, "channels_last", torch.bfloat16),
    Case(3, 1032, 256, "image", torch.float32),
], ids=str)  # fmt: skip
def test_what_is_not_for_tiles(case: Case, calls: Counter[str], device: torch.device) -> None:
    check(case, device)
    assert not calls


@on_gpu
def test_odd_addresses_are_not_for_tiles(calls: Counter[str]) -> None:
    latent = _latent(3, 256, 1032)
    memory = latent.new_empty(latent.numel() + 4)
    shifted = memory[4:].view(latent.shape).copy_(latent)
    expected, got = _measure(latent), _measure(shifted)
    assert calls == {"TiledForward": 1}
    for one, other in zip(got, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-2, atol=1e-5)


@on_gpu
@pytest.mark.parametrize("case", [
    Case(5, 64, 256, "image", torch.bfloat16, feature=3),
    Case(5, 8, 256, "planes", torch.bfloat16, feature=3),
    Case(5, 10000, 128, "image", torch.float16, feature=3),
    Case(5, 1032, 256, "image", torch.float16, feature=3),
    Case(5, 1032, 64, "image", torch.bfloat16, feature=3),
    Case(5, 1032, 512, "image", torch.bfloat16, feature=-1),
], ids=str)  # fmt: skip
def test_backward_alone(case: Case, calls: Counter[str], device: torch.device) -> None:
    """Few or many tokens, other features or numbers: the forward pass is another."""
    check(case, device)
    assert calls.keys() == {"TiledBackward"}


@on_gpu
@pytest.mark.parametrize("features", [128, 256])
def test_a_batch_norm_made_the_latent(
    features: int, calls: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the general kernel does it, which is held against float64 in test_origin.py."""
    source = _latent(7, features, 1032)
    line = torch.rand(features, device="cuda") + 0.5, torch.randn(features, device="cuda")
    made = source * line[0].view(-1, 1, 1) + line[1].view(-1, 1, 1)
    count, reading = _count(source), Reading(IMAGES, 5, 2)
    _, table, s = _measure(made.bfloat16(), 5)
    arriving, grad_table = torch.randn_like(source), 1032 * torch.randn_like(table)
    scale = torch.tensor(0.7, device="cuda")
    known = source, None, None, count, table, s, reading, arriving, grad_table, scale, line
    calls.clear()
    got, _ = kernels.measure_backward(*known)
    assert calls == {"TiledBackward": 1}
    monkeypatch.setattr(tiled, "SMALLEST", 1 << 60)
    _clear()
    expected, _ = kernels.measure_backward(*known)
    assert calls == {"TiledBackward": 1}
    positions = torch.arange(features) != 5
    for column in (positions, ~positions):
        want = expected[:, column].double()
        added = (want - arriving[:, column].double()).norm()
        assert added > 0.1 * want.norm()
        assert (got[:, column].double() - want).norm() < 1e-2 * added


@on_gpu
@pytest.mark.parametrize("scale", [1e-21, 1e-12, 1e-3, 1e12])
def test_scales(scale: float, calls: Counter[str]) -> None:
    latent = _latent(3, 256, 3136) * scale
    latent[:, 0] /= scale
    charge, table, mean_direction = _measure(latent, 0)
    count = torch.full((3,), 3136.0, dtype=torch.float64)
    _, expected = forward_slabs(latent.double().cpu(), None, None, count, Reading(IMAGES, 0, 2))
    assert calls["TiledForward"]
    for column in range(4):
        torch.testing.assert_close(
            table[:, column].double().cpu(), expected[:, column], rtol=1e-5, atol=1e-2
        )
    for columns in (slice(4, 5), slice(5, None)):
        gap = (table[:, columns].double().cpu() - expected[:, columns]).norm()
        # squares of the smallest are less than float32 can hold
        assert gap < (1e-5 if scale > 1e-20 else 1.1) * expected[:, columns].norm()
    assert mean_direction.isfinite().all()
    assert charge.isfinite().all()


@on_gpu
def test_the_same_bits_every_time(calls: Counter[str]) -> None:
    latent = _latent(200, 256, 3136)
    expected = _measure(latent)
    for _ in range(20):
        for got, want in zip(_measure(latent), expected, strict=True):
            assert torch.equal(got, want)
    assert calls["TiledForward"] == 21


@on_gpu
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_what_is_no_number_stays_in_its_sample(value: float, calls: Counter[str]) -> None:
    """And nobody waits for it for ever."""
    latent = _latent(40, 256, 3136)
    expected = _measure(latent)
    broken = latent.clone()
    broken[7, 3, 0, 1000] = value
    broken[9] = value
    got = _measure(broken)
    fine = torch.ones(40, dtype=torch.bool)
    fine[[7, 9]] = False
    for found, want in zip(got, expected, strict=True):
        assert torch.equal(found[fine], want[fine])
    assert not got[1][7, 5 + 3].isfinite()
    assert not got[1][9].isfinite().all()
    assert calls["TiledForward"] == 2


@on_gpu
def test_two_streams_at_once(calls: Counter[str]) -> None:
    """Each needs the whole GPU, so one waits for the other, and neither for ever."""
    latents = [_latent(100, 256, 3136, seed) for seed in range(2)]
    expected = [_measure(latent) for latent in latents]
    torch.cuda.synchronize()
    streams = [torch.cuda.Stream() for _ in latents]
    for _ in range(20):
        got = []
        for stream, latent in zip(streams, latents, strict=True):
            with torch.cuda.stream(stream):
                got.append(_measure(latent))
        torch.cuda.synchronize()
        for one, other in zip(got, expected, strict=True):
            assert all(map(torch.equal, one, other))
    assert calls["TiledForward"] == 42


@on_gpu
def test_in_a_graph(calls: Counter[str]) -> None:
    latent = _latent(60, 128, 3136)
    expected = _measure(latent)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = _measure(latent)
    for _ in range(3):
        for tensor in got:
            tensor.fill_(torch.nan)
        graph.replay()
        assert all(map(torch.equal, got, expected))
    other = _latent(60, 128, 3136, 1)
    expected = _measure(other)
    latent.copy_(other)
    graph.replay()
    assert all(map(torch.equal, got, expected))
    assert calls["TiledForward"]
