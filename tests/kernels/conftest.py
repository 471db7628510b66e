"""The kernels run on a GPU where there is one, and in Triton's interpreter elsewhere."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # read when Triton is imported, which no test did yet

from atomsep import kernels
from atomsep.kernels import blocks

if not kernels._FOUND:
    collect_ignore_glob = ["test_*.py"]

SMALL = {
    "FORWARD_TILE": 256,
    "FORWARD_WIDEST_ROWS": 32,
    "FORWARD_WIDEST_PLANES": 32,
    "FORWARD_TOKENS": 16,
    "LONE_BYTES": 64,
    "LEAD_PROGRAMS": 3,
    "BACKWARD_TILE": 256,
    "BACKWARD_WIDEST": 32,
    "BACKWARD_CHUNK": 32,
    "BACKWARD_TOKENS": 16,
    "MOST_TOKENS": 8,
}
"""Sizes at which small latents take every path that large ones take: many tiles, chunks, waits."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Older interpreters use what newer versions of NumPy deprecate."""
    scalars = pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning")
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(scalars)


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
