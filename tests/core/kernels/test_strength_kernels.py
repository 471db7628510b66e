"""The shares of the gradient where the kernels compute the loss are those of autograd."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from by_hand import WEIGHT
from shares_by_hand import MODELS, expected, shares

import atomsep
from atomsep import use_kernels
from atomsep.core import kernels

pytestmark = pytest.mark.usefixtures("poisoned_memory")

PASSES = ("read_atoms", "atoms_gradient", "pair_loss")


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each pass of the kernels ran."""
    counts: Counter[str] = Counter()

    def counting(name: str, run: Any) -> Any:
        def count(*arguments: Any) -> Any:
            counts[name] += 1
            return run(*arguments)

        return count

    for name in PASSES:
        monkeypatch.setattr(kernels, name, counting(name, getattr(kernels, name)))
    return counts


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_shares_are_those_of_autograd(
    name: str, autocast: bool, ran: Counter[str], device: torch.device
) -> None:
    """BERT's batch has padding."""
    make, layer, run = MODELS[name]
    model = make()
    right = expected(model.float() if autocast else model, layer, run, autocast)
    model = model.to(device, torch.float32)
    with (
        use_kernels("triton"),
        atomsep.attach(model, layer, weight=WEIGHT, watch_gradients=True) as attachment,
    ):
        for _ in range(1 if autocast else 2):  # the second knows whether the layer is overwritten
            before = ran.copy()
            with torch.autocast(device.type, torch.bfloat16, enabled=autocast):
                task = run(model)
            (task + attachment.loss()).backward()
            assert shares(attachment.stats) == pytest.approx(right, rel=0.03 if autocast else 0.01)
            assert all(ran[each] > before[each] for each in PASSES)
