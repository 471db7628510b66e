"""The kernels run on a GPU where there is one, and in Triton's interpreter elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from atomsep.core import kernels
from atomsep.core.kernels import blocks

pytest.register_assert_rewrite("cases")

if not kernels._FOUND:
    collect_ignore_glob = ["test_*.py"]

SMALL = {
    "WAVE": 8,
    "WARP_TILE": 64,
    "MOST_TOKENS": 8,
    "WIDEST_ROWS": 32,
    "WIDEST_PLANES": 32,
    "CHUNK": 32,
    "FIRST_FEATURES_ROWS": 32,
    "FIRST_FEATURES_PLANES": 16,
    "FIRST_TILES_ROWS": 3,
    "FIRST_TILES_PLANES": 3,
    "NARROW_ROWS": 16,
    "WIDE_PLANES": 8,
    "LARGEST_SHARE": 16,
    "SMALLEST_SHARE": 8,
    "SMALL_SAMPLE": 0,
}
"""Sizes at which small latents take every path that large ones take: many tiles and chunks."""


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
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    from atomsep.core.kernels import backward, forward

    plans = forward._plan, backward._launch
    for name, value in SMALL.items():
        monkeypatch.setattr(blocks, name, value)
    for plan in plans:
        plan.cache_clear()
    yield
    for plan in plans:
        plan.cache_clear()
