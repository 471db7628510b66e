"""The shares of gradients over the samples of all processes are those of one process."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from rank_models import batch, make
from ranks import Ranks

SHARES = {"gradient_share", "gradient_share_charge", "gradient_share_positions"}


def step(model: Any, attachment: Any, x: torch.Tensor, samples: int, factor: int = 1) -> None:
    """The task is a sum over samples, which data-parallel training divides by the ranks."""
    task = factor * model(x).square().sum() / samples
    (task + attachment.loss()).backward()


def sharing(rank: int, sizes: tuple[int, ...], case: dict[str, Any]) -> Any:
    """Shares of all, the rank's own and those of one process; some before a first loss."""
    model, [attachment] = make(case)
    alone, [theirs] = make(case, group=None)
    attachment.watch_gradients = theirs.watch_gradients = True
    early = attachment.gradient_shares()
    x, _ = batch(sum(sizes), torch.float64)
    step(model, attachment, x.split(sizes)[rank], sum(sizes), len(sizes))
    step(alone, theirs, x, sum(sizes))
    whole = {name: value for name, value in theirs.stats.items() if name.startswith("gradient")}
    assert theirs.gradient_shares() == whole
    own = attachment.stats.get("gradient_share") if sizes[rank] else None
    found = attachment.gradient_shares()
    attachment.watch_gradients = False
    step(model, attachment, x.split(sizes)[rank], sum(sizes), len(sizes))
    return early, found, own, whole, attachment.gradient_shares()


@pytest.mark.parametrize("maps", [False, True], ids=["feature", "maps"])
@pytest.mark.parametrize("sizes", [(3, 1, 2, 4), (3, 0, 2, 4)], ids=str)
def test_shares_of_all_are_those_of_one_process(
    four: Ranks, sizes: tuple[int, ...], maps: bool
) -> None:
    answers = four.run(sharing, sizes, {"maps": maps})
    for answer in answers:
        assert not isinstance(answer, str), answer
        early, found, own, whole, unwatched = answer
        assert early == unwatched == {}
        assert set(found) == ({"gradient_share"} if maps else SHARES)
        assert found == answers[0][1]
        assert found == pytest.approx(whole, rel=1e-9)
        assert own != pytest.approx(whole["gradient_share"], rel=0.01), "each rank has its own"


def unwatched(rank: int) -> Any:
    """Rank 1 does not watch, and the layer does not run on rank 2."""
    model, [attachment] = make({})
    attachment.conduct = attachment.conduct._replace(missing="zero")
    attachment.watch_gradients = rank != 1
    x, _ = batch(4, torch.float64, rank)
    step(model, attachment, x, 16)
    if rank == 2:
        attachment.loss().backward()
    else:
        step(model, attachment, x, 16)
    return attachment.gradient_shares()


def test_a_rank_without_gradients_takes_part(four: Ranks) -> None:
    answers = four.run(unwatched)
    assert set(answers[0]) == SHARES
    assert answers == [answers[0]] * 4
