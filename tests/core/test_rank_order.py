"""Ranks that ask for their losses in different orders are told, instead of mixing them up."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from rank_models import Model, batch
from ranks import Ranks

from atomsep import AtomLoss, attach
from atomsep.core import distributed

Layers = list[tuple[str, dict[str, Any]]]

DRAWN = {"pairs": "sampled"}
CASES: dict[str, tuple[Layers, str, tuple[str, str]]] = {
    "layers": ([("first", {}), ("second", {})], "layer", ("'first'", "'second'")),
    "settings": ([("second", {}), ("second", {"norm": 1})], "norm", ("2", "1")),
    "sampled pairs": ([("first", DRAWN), ("second", DRAWN)], "layer", ("'first'", "'second'")),
}
"""What is attached, which setting differs, and its values."""


def swapping(rank: int, at_hand: bool, layers: Layers) -> Any:
    """Two steps; in the second, rank 1 takes the losses in the other order."""
    distributed._at_hand = lambda device: at_hand
    model = Model()
    attachments = [attach(model, layer, AtomLoss(**given)) for layer, given in layers]
    values = []
    try:
        for order in (1, -1 if rank == 1 else 1):
            model(batch(3, torch.float64, rank)[0])
            values.append([attachment.loss().item() for attachment in attachments[::order]])
    except RuntimeError as error:
        return values, str(error)
    finally:
        distributed._at_hand = lambda device: device.type == "cpu"
    return values, ""


@pytest.mark.parametrize("at_hand", [True, False], ids=["cpu", "as on a gpu"])
@pytest.mark.parametrize("case", CASES)
def test_losses_in_another_order_on_one_rank(four: Ranks, case: str, at_hand: bool) -> None:
    layers, what, values = CASES[case]
    for rank, answer in enumerate(four.run(swapping, at_hand, layers)):
        assert not isinstance(answer, str), answer
        [[one, two]], error = answer  # of the first step alone
        assert one != two
        here, there = reversed(values) if rank == 1 else values
        assert f"{what} is {here} here and {there} on another rank" in error
        assert f"(rank {rank})" in error


@pytest.mark.parametrize("at_hand", [True, False], ids=["cpu", "as on a gpu"])
def test_losses_that_are_alike_in_another_order(four: Ranks, at_hand: bool) -> None:
    for rank, answer in enumerate(four.run(swapping, at_hand, [("first", {}), ("first", {})])):
        numbers = [int(word) for word in answer[1].split() if word.isdigit()]
        assert abs(numbers[1] - numbers[0]) == 1
        assert (numbers[0] > numbers[1]) == (rank == 1)
