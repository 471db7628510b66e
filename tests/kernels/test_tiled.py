"""Large contiguous latents, in tiles that both passes read once."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from cases import Case, check
from torch import Tensor

from atomsep import kernels
from atomsep.kernels import backward, forward, tiled
from atomsep.kernels.strides import token_view
from atomsep.kernels.tiled import TiledBackward, TiledForward
from atomsep.layout import Layout
from atomsep.slabs import forward_slabs
from atomsep.statistics import Reading


def _runs() -> bool:
    if not torch.cuda.is_available() or tiled._version() not in tiled.VERSIONS:
        return False
    return torch.cuda.get_device_capability()[0] == 9


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


LARGE = (256, 256, 56, 56)


def _for(
    which: Any,
    shape: tuple[int, ...] = LARGE,
    feature: int | None = -1,
    norm: int = 2,
    stride: tuple[int, ...] | None = None,
    dtype: torch.dtype = torch.bfloat16,
    plain: bool = True,
) -> bool:
    view = token_view(shape, stride or torch.empty(shape, device="meta").stride(), IMAGES)
    assert view is not None
    reading = Reading(IMAGES, feature, norm)  # type: ignore[arg-type]
    return which(view, dtype, torch.device("cuda"), reading, plain)


def test_which_latents_are_read_in_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiled, "_multiprocessors", lambda _: 132)
    monkeypatch.setattr(tiled, "_version", lambda: tiled.VERSIONS[-1])
    monkeypatch.setattr(tiled, "ALLOWED", True)
    for which in (tiled.held, tiled.tiled):
        assert _for(which)
        assert _for(which, (256, 128, 56, 56))
        assert not _for(which, plain=False)
        assert not _for(which, dtype=torch.float32)
        assert not _for(which, feature=None)
        assert not _for(which, norm=1)
        assert not _for(which, (256, 255, 56, 56))
        assert not _for(which, (256, 1024, 56, 56)), "a tile is too wide"
        assert not _for(which, (256, 256, 57, 57)), "planes begin anywhere"
        assert not _for(which, (16, 256, 56, 56)), "the general kernels are as fast"
        assert not _for(which, stride=(256 * 3136, 1, 56 * 256, 256)), "rows"
        assert not _for(which, stride=(2 * 256 * 3136, 3136, 56, 1)), "samples lie apart"
    for alone in (
        {"shape": (4096, 256, 16, 16)},  # too few tiles to share a nucleus
        {"shape": (256, 256, 96, 96)},  # more tiles than programs
        {"shape": (256, 64, 56, 56)},
        {"shape": (256, 512, 56, 56)},
        {"dtype": torch.float16},
    ):
        assert not _for(tiled.held, **alone)
        assert _for(tiled.tiled, **alone)
    monkeypatch.setattr(tiled, "ALLOWED", False)
    assert not _for(tiled.tiled), "switched off"
    monkeypatch.setattr(tiled, "ALLOWED", True)
    monkeypatch.setattr(tiled, "_multiprocessors", lambda _: 0)
    assert not _for(tiled.tiled), "another kind of GPU"
    monkeypatch.setattr(tiled, "_multiprocessors", lambda _: 132)
    monkeypatch.setattr(tiled, "_version", lambda: (3, 99))
    assert not _for(tiled.tiled), "never seen to work"


@pytest.mark.parametrize(("major", "hip", "found"), [(9, None, 78), (10, None, 0), (9, "6.2", 0)])
def test_which_gpus(
    major: int, hip: str | None, found: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    properties = SimpleNamespace(major=major, multi_processor_count=78)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: properties)
    monkeypatch.setattr(torch.version, "hip", hip)
    assert tiled._multiprocessors.__wrapped__(torch.device("cuda")) == found


@pytest.mark.skipif(tiled._version() < tiled.VERSIONS[0], reason="needs Gluon of Triton 3.6")
def test_a_sample_finishes(device: torch.device) -> None:
    """What the tiles left, added up: the part that the interpreter can run."""
    from atomsep.kernels import tiled_forward

    samples, tiles, features, feature = 2, 11, 64, 5
    pitch = features + tiled.TALLIES
    rows = torch.randn(samples, tiles, pitch, dtype=torch.float64).float()
    nuclei = torch.randn(samples, features, dtype=torch.float64).float()
    numbers = torch.cat([rows.flatten(), nuclei.flatten()]).to(device)
    count = torch.tensor([700.0, 650.0], device=device)
    table = torch.full((samples, 5 + features - 1), torch.nan, device=device)
    s = torch.full((samples, features - 1), torch.nan, device=device)
    tiled_forward.finish_kernel[(samples,)](
        *(numbers, count, table, s, tiles),
        FEATURE=feature, FEATURES=features, TALLIES=tiled.TALLIES,
    )  # fmt: skip
    sums = rows.double().sum(1)
    kept = [column for column in range(features) if column != feature]
    expected = sums[:, :features] - sums[:, features + 5, None] * nuclei
    tallies = sums[:, features : features + 5]
    tallies[:, 4] /= count.cpu()
    torch.testing.assert_close(table[:, :5].cpu(), tallies.float())
    torch.testing.assert_close(table[:, 5:].cpu(), nuclei[:, kept])
    torch.testing.assert_close(s.cpu(), (expected / count.cpu()[:, None])[:, kept].float())


@pytest.mark.parametrize("variable", ["ATOMSEP_TILES=0", "TRITON_INTERPRET=1"])
def test_tiles_are_switched_off(variable: str) -> None:
    name, value = variable.split("=")
    plain = {key: each for key, each in os.environ.items() if key != "TRITON_INTERPRET"}
    code = "from atomsep.kernels import tiled; print(tiled.ALLOWED)"
    for environment, said in ((plain, "True"), ({**plain, name: value}, "False")):
        done = subprocess.run(
            [sys.executable, "-c", code],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout.strip() == said


def test_every_sample_has_programs_for_all_of_its_nucleus() -> None:
    for features in tiled.SLOTS:
        assert tiled.TILE % features == 0
        for tiles in range(9, 129):
            most, share = tiled.nucleus_share(tiles)
            assert tiles <= most
            assert 32 % share == 0
            assert share * tiles >= features
