"""What ranks agree on before they exchange statistics, and what they refuse."""

from __future__ import annotations

import copy
import os
import pickle
import re

import pytest
import torch
import torch.distributed as dist
from rank_models import FEATURES, Model, batch, make
from ranks import Ranks
from torch import nn

from atomsep import AtomLoss, attach


def one_alone(rank: int) -> str:
    """A forward on one rank alone does not wait for the others; nor does a copy."""
    if rank == 0:
        model, _ = make({})
        model(batch(3, torch.float64)[0])
    group = dist.new_group([0, 1])
    if rank > 1:
        return ""
    criterion = copy.deepcopy(AtomLoss(group=group))
    assert criterion.ranks.group is group
    restored = pickle.loads(pickle.dumps(criterion))
    assert restored.ranks.group == "world"
    return "fine"


def test_forwards_and_copies_do_not_wait(four: Ranks) -> None:
    assert four.run(one_alone) == ["fine", "fine", "", ""]


def differing(rank: int, what: str) -> None:
    group = dist.new_group(list(range(dist.get_world_size())))
    model = Model()
    odd = rank == 2
    criterion = AtomLoss(norm=1 if odd and what == "norm" else 2, group=group)
    layer = "first" if odd and what == "layer" else "second"
    if odd and what == "features":
        model.second = nn.Linear(FEATURES, FEATURES + 2).double()
        model.head = nn.Linear(FEATURES + 2, 1).double()
    attachment = attach(model, layer, criterion)
    model(batch(3, torch.float64)[0])
    attachment.loss()


@pytest.mark.parametrize(
    ("what", "values"),
    [("norm", "2 .*1 "), ("layer", "'second' .*'first' "), ("features", "4 .*6 ")],
)
def test_ranks_that_differ_are_told_on_every_rank(four: Ranks, what: str, values: str) -> None:
    for answer in four.run(differing, what):
        assert re.search(f"RuntimeError: .* {what} is {values}on rank 2", answer)


def second_gradient(rank: int) -> None:
    model, [attachment] = make({})
    x, _ = batch(3, torch.float64, rank)
    model(x)
    [gradient] = torch.autograd.grad(attachment.loss(), model.second.weight, create_graph=True)
    gradient.sum().backward()


def test_second_derivatives_across_ranks_are_refused(four: Ranks) -> None:
    for answer in four.run(second_gradient):
        assert "cannot be differentiated again" in answer


def lacking(rank: int, how: str) -> None:
    model, [attachment] = make({})
    model(batch(3, torch.float64)[0])
    attachment.loss()
    if rank == 1:
        if how == "dies":
            os._exit(1)
        return
    if how == "no attachment":
        attachment = attach(model, "first", AtomLoss())
    model(batch(3, torch.float64)[0])
    attachment.loss()


@pytest.mark.parametrize("how", ["dies", "no attachment"])
def test_a_rank_that_does_not_come_is_an_error_on_the_others(how: str) -> None:
    ranks = Ranks(2, timeout=15)
    answer, other = ranks.run(lacking, how)
    ranks.close()
    assert other == ("died" if how == "dies" else None)
    assert "Error" in answer
    if how == "no attachment":
        assert "rank 1 did not ask for its atom loss within 15 seconds" in answer
