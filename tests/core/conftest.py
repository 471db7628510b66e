"""Processes that several test files share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from ranks import Ranks


@pytest.fixture(scope="session")
def four() -> Iterator[Ranks]:
    ranks = Ranks(4)
    yield ranks
    ranks.close()
