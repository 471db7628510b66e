"""What the tests share: reproducible examples, poisoned memory."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import torch
from hypothesis import settings

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # read when Triton is first imported

pytest.register_assert_rewrite("loss_batches", "tiny_runs")

torch.set_num_threads(1)  # the tensors are small: threads would only wait for each other

settings.register_profile("atomsep", deadline=None, derandomize=True, database=None)
settings.load_profile("atomsep")


@pytest.fixture
def poisoned_memory() -> Iterator[None]:
    """Fresh memory holds NaN, so that an output left unwritten shows."""
    filled = torch.utils.deterministic.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = True
    assert torch.empty(3).isnan().all()
    yield
    torch.use_deterministic_algorithms(False)
    torch.utils.deterministic.fill_uninitialized_memory = filled
