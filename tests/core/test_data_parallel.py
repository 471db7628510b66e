"""Data-parallel training by DDP, FSDP2, Fabric and Accelerate, against one process."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch
import torch.distributed as dist
from rank_models import batch, make
from ranks import Ranks
from torch import nn
from torch.nn.parallel import DistributedDataParallel

SIZES = (3, 1, 2, 4)
EMPTY = (3, 0, 2, 4)
ALL: dict[str, Any] = {"maps": True, "masked": True, "micro": 3}


def parallelised(model: nn.Module, kind: str, rank: int, size: int) -> Any:
    """The model as a library for data-parallel training wraps it, in the group that exists."""
    if kind == "ddp":
        return DistributedDataParallel(model)
    if kind == "fsdp":
        from torch.distributed.fsdp import fully_shard

        return fully_shard(model)
    # As torchrun tells them.
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(size))
    os.environ.update(LOCAL_WORLD_SIZE=str(size), MASTER_ADDR="127.0.0.1", MASTER_PORT="1")
    if kind == "fabric":
        from lightning.fabric import Fabric

        fabric = Fabric(accelerator="cpu", devices=size, strategy="ddp")
        fabric.launch()
        return fabric.setup(model)
    from accelerate import Accelerator

    return Accelerator(cpu=True).prepare(model)


def holding_back(parallel: Any, kind: str, last: bool) -> AbstractContextManager[Any]:
    """Gradients are averaged after the last micro-batch only."""
    if kind == "fsdp":
        parallel.set_requires_gradient_sync(last)
    if kind == "ddp" and not last:
        held: AbstractContextManager[Any] = parallel.no_sync()
        return held
    return nullcontext()


def wrapped(
    rank: int,
    kind: str,
    sizes: tuple[int, ...],
    steps: int,
    maps: bool = False,
    masked: bool = False,
    micro: int = 1,
) -> Any:
    """Losses and last weights of some steps of a data-parallel model, and those of one process."""
    case = {"dtype": torch.float32, "maps": maps}
    model, attachments = make(case)
    parallel = parallelised(model, kind, rank, len(sizes))
    alone, theirs = make(case, group=None)
    assert parallel is not model or kind == "fsdp"
    optimisers = [
        torch.optim.SGD([*run.parameters(), *held[0].parameters()], lr=0.05)
        for run, held in ((parallel, attachments), (alone, theirs))
    ]
    values: tuple[list[float], list[float]] = ([], [])
    for step in range(steps):
        for optimiser in optimisers:
            optimiser.zero_grad()
        for part in range(micro):
            x, mask = batch(sum(sizes), torch.float32, micro * step + part)
            own, own_mask = x.split(sizes)[rank], mask.split(sizes)[rank]
            with holding_back(parallel, kind, last=part == micro - 1):
                # The task's loss: a sum over samples, which data-parallel training divides by 4.
                for run, held, inputs, real, factor, kept in (
                    (parallel, attachments, own, own_mask, len(sizes), values[0]),
                    (alone, theirs, x, mask, 1, values[1]),
                ):
                    output = run(inputs, attention_mask=real if masked else None)
                    task = factor * output.square().mean(1).sum() / sum(sizes)
                    loss = held[0].loss()
                    ((task + loss) / micro).backward()
                    kept.append(loss.item())
        for optimiser in optimisers:
            optimiser.step()
    weights = []
    for run, held in ((model, attachments), (alone, theirs)):
        weight = run.second.weight
        whole = weight.full_tensor() if hasattr(weight, "full_tensor") else weight
        weights.append([each.detach().clone() for each in (whole, *held[0].parameters())])
    return values, weights


@pytest.mark.parametrize(
    ("kind", "sizes", "steps", "case"),
    [
        *((kind, SIZES, 10, {}) for kind in ("ddp", "fsdp", "fabric", "accelerate")),
        *((kind, EMPTY, 4, case) for kind in ("ddp", "fsdp") for case in ({}, ALL)),
    ],
    ids=lambda each: "+".join(each) if isinstance(each, dict) else str(each),
)
def test_data_parallel_training_equals_one_process(
    four: Ranks, kind: str, sizes: tuple[int, ...], steps: int, case: dict[str, Any]
) -> None:
    if kind == "fsdp" and torch.__version__ < "2.7":
        pytest.skip("fully_shard fails on the CPU in PyTorch 2.6")
    for answer in four.run(wrapped, kind, sizes, steps, **case):
        assert not isinstance(answer, str), answer
        (values, expected), weights = answer
        assert values == pytest.approx(expected, rel=1e-4)
        torch.testing.assert_close(*weights, rtol=1e-4, atol=1e-6)


def in_halves(rank: int, sizes: tuple[int, ...]) -> Any:
    """DDP over all ranks, and pairs within the first two and the last two."""
    halves = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    parts = batch(sum(sizes), torch.float64)[0].split(sizes)
    model, [attachment] = make({}, group=halves[rank // 2])
    parallel = DistributedDataParallel(model)  # which averages as long as it lives
    output = parallel(parts[rank])
    (attachment.loss() + 0 * output.sum()).backward()
    alone, [theirs] = make({}, group=None)
    for first in (0, 2):
        alone(torch.cat(parts[first : first + 2]))
        (theirs.loss() / 2).backward()
    return model.second.weight.grad, alone.second.weight.grad


def in_the_last_two(rank: int, sizes: tuple[int, ...]) -> Any:
    """DDP and pairs over the last two ranks alone."""
    group = dist.new_group([2, 3])
    if rank < 2:
        return None
    x, _ = batch(sum(sizes), torch.float64)
    model, [attachment] = make({"maps": True}, group=group)
    parallel = DistributedDataParallel(model, process_group=group)
    output = parallel(x.split(sizes)[rank - 2])
    (attachment.loss() + 0 * output.sum()).backward()
    alone, [theirs] = make({"maps": True}, group=None)
    alone(x)
    theirs.loss().backward()
    return tuple(
        [run.second.weight.grad, *(each.grad for each in held.parameters())]
        for run, held in ((model, attachment), (alone, theirs))
    )


@pytest.mark.parametrize(
    ("within", "sizes"), [(in_halves, (3, 2, 0, 4)), (in_the_last_two, (5, 2))]
)
def test_groups_of_some_ranks(four: Ranks, within: Any, sizes: tuple[int, ...]) -> None:
    answers = [answer for answer in four.run(within, sizes) if answer is not None]
    assert answers
    for answer in answers:
        assert not isinstance(answer, str), answer
        torch.testing.assert_close(*answer, rtol=1e-10, atol=1e-12)
