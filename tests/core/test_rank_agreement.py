"""What ranks agree on before they exchange statistics, and what they refuse."""

from __future__ import annotations

import copy
import os
import pickle
import re
import time
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from rank_models import FEATURES, Model, batch, make
from ranks import Ranks
from torch import nn

from atomsep import AtomLoss, attach
from atomsep.core import distributed


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
    given: dict[str, Any] = {"norm": 1} if odd and what == "norm" else {}
    if odd and what in ("charge", "tokens"):
        given = {what: 3}
    if what == "the checksum of its maps" or (odd and what == "position"):
        torch.manual_seed(rank // 2)
        given = {"position": nn.Linear(FEATURES, FEATURES - 1)}
    criterion = AtomLoss(group=group, **given).double()
    layer = "first" if odd and what == "layer" else "second"
    if odd and what == "features":
        model.second = nn.Linear(FEATURES, FEATURES + 2).double()
        model.head = nn.Linear(FEATURES + 2, 1).double()
    attachment = attach(model, layer, criterion, weight=0.9 if odd and what == "weight" else 0.3)
    model(batch(3, torch.float64)[0])
    attachment.loss()


@pytest.mark.parametrize(
    ("what", "values"),
    [
        ("norm", "2 .*1 "),
        ("layer", "'second' .*'first' "),
        ("features", "4 .*6 "),
        ("charge", "0 .*3 "),
        ("tokens", "None .*3 "),
        ("position", "None .*'a map' "),
        ("weight", "0.3 .*0.9 "),
        ("the checksum of its maps", r"\d+ .*\d+ "),
    ],
)
def test_ranks_that_differ_are_told_on_every_rank(four: Ranks, what: str, values: str) -> None:
    for answer in four.run(differing, what):
        assert re.search(f"RuntimeError: .* {what} is {values}on rank 2", answer)


def in_a_part(rank: int) -> Any:
    group = dist.new_group([1, 3])
    if rank not in (1, 3):
        return None
    model = Model()
    attachment = attach(model, "second", AtomLoss(norm=1 if rank == 3 else 2, group=group))
    model(batch(3, torch.float64)[0])
    return attachment.loss().item()


def test_ranks_of_a_group_go_by_their_own_numbers(four: Ranks) -> None:
    answers = four.run(in_a_part)
    for answer in answers[1::2]:
        assert "norm is 2 on rank 1 and 1 on rank 3" in answer


def with_numpy(rank: int) -> list[float]:
    """Settings that come from NumPy, as those of a search often do, and Python's own."""
    lengths, values = ("energy", "neutrality", "occupancy", "softening"), []
    whole = {"norm": 1, "seed": 3, "tokens": 2, "charge": 1}
    plain = {**dict.fromkeys(lengths, 0.25), **whole}
    theirs = dict.fromkeys(lengths, np.float32(0.25))
    theirs |= {name: np.int64(value) for name, value in whole.items()}
    for given in (theirs, plain):
        model = Model()
        attachment = attach(model, "second", AtomLoss(pairs="sampled", **given), weight=0.5)
        attachment.weight = np.float32(0.5)
        model(batch(3, torch.float64, rank)[0])
        values.append(attachment.loss().item())
    return values


def test_settings_may_be_numbers_of_numpy(four: Ranks) -> None:
    for answer in four.run(with_numpy):
        assert not isinstance(answer, str), answer
        assert answer[0] == answer[1]


def weighed_later(rank: int) -> list[float]:
    """A weight may change after the first loss; the gradients of maps are those of one process."""
    model, [attachment] = make({"maps": True}, group=dist.group.WORLD)
    values = []
    for weight in (0.5, 1.0):
        attachment.weight = weight
        model(batch(3, torch.float64, rank)[0])
        loss = attachment.loss()
        loss.backward()
        values.append(loss.item())
    return values


def test_a_weight_may_change_after_the_first_loss(four: Ranks) -> None:
    answers = four.run(weighed_later)
    assert answers == [answers[0]] * 4
    once, twice = answers[0]
    assert twice == pytest.approx(2 * once)


def dropped(rank: int) -> Any:
    """Rank 1 leaves the layer out of its second step; gradients of maps, and those of one process.

    Learned maps are averaged over the ranks by a collective in the backward pass, so rank 1 must
    take part in it.
    """
    found = []
    for group in ("world", None):
        model = Model()
        torch.manual_seed(1)
        maps = {"charge": nn.Linear(FEATURES, 1), "position": nn.Linear(FEATURES, 4)}
        criterion = AtomLoss(**maps, group=group).double()
        attachment = attach(model, "second", criterion, missing="zero")
        parts = [batch(3, torch.float64, each)[0] for each in range(dist.get_world_size())]
        if group:
            model(parts[rank])
            attachment.loss().backward()
            criterion.zero_grad()
            if rank != 1:
                model(parts[rank])
        else:
            model(torch.cat([part for each, part in enumerate(parts) if each != 1]))
        attachment.loss().backward()
        found.append([parameter.grad for parameter in criterion.parameters()])
    return found


def test_learned_maps_of_a_layer_that_did_not_run_on_one_rank(four: Ranks) -> None:
    for answer in four.run(dropped):
        assert not isinstance(answer, str), answer
        torch.testing.assert_close(*answer, rtol=1e-10, atol=1e-12)


def second_gradient(rank: int) -> None:
    model, [attachment] = make({})
    x, _ = batch(3, torch.float64, rank)
    model(x)
    [gradient] = torch.autograd.grad(attachment.loss(), model.second.weight, create_graph=True)
    gradient.sum().backward()


def test_second_derivatives_across_ranks_are_refused(four: Ranks) -> None:
    for answer in four.run(second_gradient):
        assert "cannot be differentiated again" in answer


def lacking(rank: int, how: str, at_hand: bool) -> Any:
    """Rank 1 takes part in the first step alone; returns what rank 0 is told, and how soon."""
    distributed._at_hand = lambda device: at_hand
    model, [attachment] = make({})
    model(batch(3, torch.float64)[0])
    attachment.loss()
    if rank == 1:
        if how == "dies":
            os._exit(1)
        return None
    if how == "no attachment":
        attachment = attach(model, "first", AtomLoss())
    model(batch(3, torch.float64)[0])
    start = time.monotonic()
    try:
        attachment.loss()
    except Exception as error:
        return str(error), time.monotonic() - start
    return "", 0.0


@pytest.mark.parametrize(
    ("how", "at_hand"),
    [("dies", True), ("dies", False), ("no attachment", True), ("is stuck", False)],
)
def test_a_rank_that_does_not_come_is_an_error_on_the_others(how: str, at_hand: bool) -> None:
    """On a GPU, the hosts notice; a rank that is there but does nothing more is waited for."""
    patience = 15  # within which they must also have started
    ranks = Ranks(2, timeout=patience)
    answer, other = ranks.run(lacking, how, at_hand)
    ranks.close()
    assert other == ("died" if how == "dies" else None)
    message, taken = answer
    assert message
    if how == "no attachment":
        assert f"rank 1 did not ask for its atom loss within {patience} seconds" in message
    assert taken < (0.8 * patience if how == "dies" else 3 * patience)


def without_host(rank: int) -> None:
    model, [attachment] = make({})
    model(batch(3, torch.float64)[0])
    dist.barrier()
    if rank == 0:
        os._exit(1)
    attachment.loss()


def test_a_store_that_is_gone_is_no_timeout() -> None:
    """As under torchrun, where the first process hosts the store of all."""
    ranks = Ranks(2, timeout=60, tcp=True)
    start = time.monotonic()
    died, answer = ranks.run(without_host)
    taken = time.monotonic() - start
    ranks.close()
    assert died == "died"
    assert taken < 40, "it does not wait for the timeout"
    assert "the connection to the other ranks was lost" in answer
    assert "within" not in answer
