"""Which latents are read in tiles, and what surrounds the kernels that do: no GPU is needed."""

from __future__ import annotations

import os
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from atomsep.kernels import tiled
from atomsep.kernels.strides import token_view
from atomsep.layout import Layout
from atomsep.statistics import Reading

IMAGES = Layout("channels_first")
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
