"""One loss over the samples of several processes, against one process on all of them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from rank_models import Model, batch, make
from ranks import Ranks
from torch import Tensor, nn

from atomsep import attach, use_kernels
from atomsep.core import distributed, kernels

SIZES = [(6,), (4, 4), (5, 1, 7), (5, 0, 7), (1, 1), (3, 1, 0, 6)]


def train(
    case: dict[str, Any], model: nn.Module, attachments: list[Any], parts: Any
) -> list[float]:
    """The backward passes of some micro-batches; returns their losses."""
    run: Any = torch.compile(model, backend="aot_eager") if case.get("compiled") else model
    values = []
    for x, mask in parts:
        with torch.autocast("cpu", torch.bfloat16, enabled=case.get("autocast", False)):
            run(x, attention_mask=mask if case.get("masked") else None)
        loss = torch.stack([attachment.loss() for attachment in attachments]).sum()
        (loss / len(parts)).backward()
        values.append(loss.item())
    return values


def gradients(model: nn.Module, attachments: list[Any]) -> list[Tensor]:
    maps = [p for attachment in attachments for p in attachment.parameters()]
    return [*(p.grad for p in model.parameters() if p.grad is not None), *(p.grad for p in maps)]


def on_ranks(rank: int, sizes: tuple[int, ...], case: dict[str, Any]) -> Any:
    """A rank's losses and its averaged gradients, and those of one process on everything."""
    world = dist.get_world_size()
    group: Any = "world" if len(sizes) == world else dist.new_group(list(range(len(sizes))))
    if rank >= len(sizes):
        return None
    steps = case.get("steps", 1)
    dtype = case.get("dtype", torch.float64)
    wholes = [batch(sum(sizes), dtype, seed) for seed in range(steps)]
    parts = [(x.split(sizes)[rank], mask.split(sizes)[rank]) for x, mask in wholes]
    if case.get("cropped"):  # to this rank's longest sample
        lengths = [int(mask.sum(1).max()) if len(mask) else 1 for _, mask in parts]
        parts = [(x[:, :n], mask[:, :n]) for (x, mask), n in zip(parts, lengths, strict=True)]
    model, attachments = make(case, group=group)
    with use_kernels(case.get("kernels", "torch")):
        values = train(case, model, attachments, parts)
    for parameter in model.parameters():
        if parameter.grad is not None:  # as data-parallel training does; not for the maps
            dist.all_reduce(parameter.grad, group=None if group == "world" else group)
            parameter.grad /= len(sizes)
    alone, theirs = make(case, group=None)
    expected = train(case, alone, theirs, wholes)
    return (values, gradients(model, attachments)), (expected, gradients(alone, theirs))


def check(answers: list[Any], tolerance: float) -> None:
    answers = [answer for answer in answers if answer is not None]
    assert answers
    for answer in answers:
        assert not isinstance(answer, str), answer
        (values, found), (expected, known) = answer
        assert values == pytest.approx(expected, rel=tolerance)
        assert values == answers[0][0][0]  # equal on every rank, to the bit
        assert len(found) == len(known) > 0
        scale = max(each.abs().max() for each in known)  # that of a shift may be 0
        for mine, theirs in zip(found, known, strict=True):
            assert (mine - theirs).abs().max() / scale < tolerance


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("masked", [False, True])
def test_the_gradient_is_that_of_one_process(
    four: Ranks, sizes: tuple[int, ...], masked: bool
) -> None:
    check(four.run(on_ranks, sizes, {"masked": masked}), 1e-12)


CASES: dict[str, dict[str, Any]] = {
    "1-norm, sums": {"losses": [{"norm": 1, "scale": "sum"}]},
    "constraints alone": {"losses": [{"energy": 0.0}]},
    "no softening": {"losses": [{"softening": 0.0}]},
    "learned maps": {"maps": True, "masked": True},
    "tokens that differ between ranks": {"masked": True, "cropped": True, "steps": 2},
    "two attachments": {"losses": [{}, {"norm": 1}]},
    "two layers": {"layers": ["first", "second"]},
    "accumulation": {"steps": 3, "masked": True},
    "compiled": {"compiled": True},
    "compiled with learned maps": {"compiled": True, "maps": True, "steps": 2},
    "checkpointed": {"checkpointed": True},
}
IN_FLOAT32: dict[str, tuple[dict[str, Any], float]] = {
    "float32": ({"dtype": torch.float32}, 2e-5),
    "autocast": ({"dtype": torch.float32, "autocast": True}, 2e-2),
    "kernels": ({"dtype": torch.float32, "kernels": "triton"}, 2e-5),
    "kernels with learned maps": (
        {"dtype": torch.float32, "kernels": "triton", "maps": True, "masked": True},
        2e-5,
    ),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("sizes", [(5, 1, 7), (5, 0, 7)], ids=str)
def test_it_is_in_every_regime(four: Ranks, name: str, sizes: tuple[int, ...]) -> None:
    check(four.run(on_ranks, sizes, CASES[name]), 1e-12)


@pytest.mark.parametrize("name", IN_FLOAT32)
@pytest.mark.parametrize("sizes", [(5, 1, 7), (5, 0, 7)], ids=str)
def test_it_is_in_lower_precision(four: Ranks, name: str, sizes: tuple[int, ...]) -> None:
    """The kernels run in Triton's interpreter."""
    if name.startswith("kernels") and not (kernels._FOUND and kernels._INTERPRETED):
        pytest.skip("the kernels read tensors on the CPU only in Triton's interpreter")
    case, tolerance = IN_FLOAT32[name]
    check(four.run(on_ranks, sizes, case), tolerance)


def growing(rank: int, at_hand: bool, pairs: str) -> Any:
    """The second batch is ten times the first, on one rank alone; the third is small again.

    Losses and a gradient, and those of one process. Without `at_hand` the hosts may not look at
    what was exchanged, as on a GPU.
    """
    distributed._at_hand = lambda device: at_hand
    model, [attachment] = make({"losses": [{"pairs": pairs}]})
    alone, [theirs] = make({"losses": [{"pairs": pairs}]}, group=None)
    sizes = [(2, 2, 0, 2), (3, 3, 30, 0), (1, 2, 3, 4)]
    wholes = [batch(sum(each), torch.float64, step)[0] for step, each in enumerate(sizes)]
    values = []
    for whole, each in zip(wholes, sizes, strict=True):
        model(whole.split(each)[rank])
        alone(whole)
        losses = attachment.loss(), theirs.loss()
        for loss in losses:
            loss.backward()
        values.append([loss.item() for loss in losses])
    distributed._at_hand = lambda device: True
    dist.all_reduce(model.second.weight.grad)
    return values, (model.second.weight.grad / len(sizes[0]), alone.second.weight.grad)


@pytest.mark.parametrize("at_hand", [True, False], ids=["cpu", "as on a gpu"])
def test_larger_batches_than_the_first_are_exchanged_too(four: Ranks, at_hand: bool) -> None:
    for answer in four.run(growing, at_hand, "all"):
        assert not isinstance(answer, str), answer
        values, gradients = answer
        for found, expected in values:
            assert found == pytest.approx(expected, rel=1e-12)
        torch.testing.assert_close(*gradients, rtol=1e-10, atol=1e-12)


def test_pairs_of_larger_batches_are_sampled_as_on_the_cpu(four: Ranks) -> None:
    answers = [four.run(growing, at_hand, "sampled") for at_hand in (True, False)]
    for here, there in zip(*answers, strict=True):
        assert not isinstance(there, str), there
        assert [mine for mine, _ in there[0]] == [mine for mine, _ in here[0]]
        assert torch.equal(there[1][0], here[1][0])


def leaving_out(rank: int) -> Any:
    """The layer does not run on rank 1 in the second step (LayerDrop)."""
    model = Model()
    attachment = attach(model, "second", weight=0.7, missing="zero")
    parts = [batch(3 + other, torch.float64, other)[0] for other in range(dist.get_world_size())]
    model(parts[rank])
    attachment.loss()
    if rank != 1:
        model(parts[rank])
    loss = attachment.loss()
    loss.backward()
    alone, [theirs] = make({}, group=None)
    alone(torch.cat([part for other, part in enumerate(parts) if other != 1]))
    return loss.item(), theirs.loss().item()


def test_a_rank_whose_layer_did_not_run_takes_part(four: Ranks) -> None:
    for answer in four.run(leaving_out):
        assert not isinstance(answer, str), answer
        assert answer[0] == pytest.approx(answer[1], rel=1e-12)


def reading(rank: int, sizes: tuple[int, ...]) -> Any:
    """What rank 1 alone reads after the loss, before it, and in evaluation; one process's too."""
    model, [attachment] = make({})
    alone, [theirs] = make({}, group=None)
    x, _ = batch(sum(sizes), torch.float64)
    part = x.split(sizes)[rank]
    model(part)
    before = attachment.stats if rank == 1 else {}
    attachment.loss()
    if rank != 1:
        return None
    after = attachment.stats
    alone(x)
    theirs.loss()
    whole = theirs.stats
    alone(part)
    own = theirs.stats
    alone.eval()(x)
    model.eval()(x)
    return before, own, after, whole, attachment.stats, theirs.stats


def test_stats_are_those_of_all_samples_after_the_loss(four: Ranks) -> None:
    """No rank waits for another to read them."""
    answer = four.run(reading, (3, 2, 0, 6))[1]
    assert not isinstance(answer, str), answer
    before, own, after, whole, seen, alone = answer
    assert before == pytest.approx(own, rel=1e-12)
    assert after.pop("position_share") == pytest.approx(own["position_share"], rel=1e-12)
    assert whole.pop("position_share") != pytest.approx(own["position_share"], rel=0.01)
    assert after == pytest.approx(whole, rel=1e-12)
    assert after["energy"] != pytest.approx(own["energy"], rel=0.01)
    assert seen == pytest.approx(alone, rel=1e-12)


def within(rank: int) -> float:
    model, [attachment] = make({}, group=None)
    x, _ = batch(3, torch.float64, rank)
    model(x)
    return attachment.loss().item()


def test_without_a_group_pairs_stay_within_the_rank(four: Ranks) -> None:
    for rank, value in enumerate(four.run(within)):
        model, [attachment] = make({})  # no process group here
        model(batch(3, torch.float64, rank)[0])
        assert value == attachment.loss().item()
