"""The kernels run on a GPU where there is one, and in Triton's interpreter elsewhere."""

from __future__ import annotations

import os

import pytest
import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # read when Triton is imported, which no test did yet

from atomsep import kernels
from atomsep.kernels import blocks

pytest.importorskip("triton")

SMALL = {
    "FORWARD_TILE": 64,
    "FORWARD_WIDEST_ROWS": 16,
    "FORWARD_WIDEST_PLANES": 8,
    "FORWARD_TOKENS": 8,
    "LONE_BYTES": 128,
    "LEAD_PROGRAMS": 3,
    "BACKWARD_TILE": 64,
    "BACKWARD_WIDEST": 16,
    "BACKWARD_CHUNK": 8,
    "BACKWARD_TOKENS": 8,
}
"""Sizes at which small latents take every path that large ones take: many tiles, chunks, waits."""


@pytest.fixture
def device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.fixture(autouse=True)
def _interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where atomsep was imported before the variable was set."""
    monkeypatch.setattr(kernels, "_INTERPRETED", not torch.cuda.is_available())


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in SMALL.items():
        monkeypatch.setattr(blocks, name, value)
