"""Take the loss of what a hook holds, and look whether it does what it seems to do."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from atomsep.checks import transforms_active
from atomsep.core.statistics import Statistics
from atomsep.hooks import reasons
from atomsep.hooks.held import Held, transform_depth
from atomsep.hooks.losses import mean_of, zero_loss
from atomsep.hooks.runs import LEFT_OUT, PATIENCE
from atomsep.hooks.tap import LayerTap
from atomsep.hooks.watch import ONE_TOKEN


def check_loss(tap: LayerTap) -> None:
    """Raise if there is neither a loss to take nor a zero to give instead."""
    held = tap.forwards.read()
    if tap.attachment.active:
        tap.settle(held)
        if held.depth > transform_depth():  # the transform that it belongs to has ended
            held.statistics, held.earlier = None, ()
    tap.check_place()
    if not _has_loss(tap, held) and not _may_be_zero(tap, held):
        raise RuntimeError(tap.why_nothing(held))


def _has_loss(tap: LayerTap, held: Held) -> bool:
    evaluated = not held.training and not tap.attachment.model.training
    return held.statistics is not None and not evaluated


def _may_be_zero(tap: LayerTap, held: Held) -> bool:
    attachment = tap.attachment
    if not attachment.active:
        return False
    if not attachment.model.training:
        return attachment.conduct.in_eval == "zero"
    # Reentrant checkpointing never runs with gradients, which is not the same as not at all.
    ran = held.idle_reason in (reasons.WITHOUT_GRADIENTS, reasons.TRANSFORMED)
    return attachment.conduct.missing == "zero" and not ran


def take_loss(tap: LayerTap, weight: float) -> Tensor:
    """The loss of the last training forward, or of all runs, times a weight; once."""
    held = tap.forwards.read()
    statistics = held.statistics
    if statistics is None or not _has_loss(tap, held):
        return _zero(tap, held, weight)
    runs = [*(run.statistics for run in held.earlier), statistics]
    held.statistics, held.earlier = None, ()
    if not torch.compiler.is_compiling():
        held.most = max(held.most, len(runs))
    held.taken = None if held.depth else statistics.detach()
    criterion = tap.attachment.criterion
    loss = mean_of([criterion.from_statistics(each, weight, tap.name) for each in runs])
    if criterion.ranks.several and held.taken is not None:
        held.taken = replace(held.taken, gathered=criterion.ranks.gathered)
    if transforms_active():
        return loss
    if not statistics.table.requires_grad:
        tap.watch.tell(
            "frozen",
            f"no gradient reaches layer {tap.name!r}: everything before it is frozen, so its "
            f"atom loss trains nothing; attach after the first trained layer",
        )
    if not torch.compiler.is_compiling():
        _watch(tap, held, loss)
    return loss


def _zero(tap: LayerTap, held: Held, weight: float) -> Tensor:
    """What stands for a loss that is not there; a layer that never runs is noticed."""
    if tap.attachment.model.training and not torch.compiler.is_compiling():
        held.zeros += 1
        if held.zeros == PATIENCE:
            tap.watch.tell(
                "missing",
                f"layer {tap.name!r} did not run in the last {PATIENCE} steps, so its loss is 0; "
                f"check that it is part of the model's forward",
            )
    zero = zero_loss(tap.reader.layer, tap.attachment.model)
    if tap.attachment.model.training and tap.attachment.criterion.ranks.several:
        return zero + _of_others(tap, held, weight)
    return zero


def _of_others(tap: LayerTap, held: Held, weight: float) -> Tensor:
    """The loss of the other ranks, which wait for this one's samples: it has none."""
    last = held.taken
    if last is None:
        raise RuntimeError(
            f"layer {tap.name!r} did not run on this rank before the first loss, so that it cannot "
            f"be exchanged with the other ranks; let every rank run it once, or form pairs within "
            f"each rank: AtomLoss(group=None)"
        )
    criterion = tap.attachment.criterion
    table = last.table[:0]
    for parameter in criterion.parameters():  # the other ranks average their gradients with ours
        table = table + parameter.sum().to(table.dtype)
    return criterion.from_statistics(Statistics(table, last.count[:0]), weight, tap.name)


def _watch(tap: LayerTap, held: Held, loss: Tensor) -> None:
    """Look for what makes a loss useless, after one was taken."""
    held.losses, held.zeros = held.losses + 1, 0
    attachment, numbers = tap.attachment, held.taken
    if numbers is None:
        return
    if held.left_out:
        attachment.tell("left out", f"layer {tap.name!r} {LEFT_OUT}")
    alone = len(numbers.count) == 1 and not attachment.criterion.ranks.several
    if alone and attachment.criterion.terms.energy:
        attachment.tell(
            "single",
            f"layer {tap.name!r} got a batch of one sample: the energy is a mean over pairs of "
            f"samples, so it is 0 and only the constraints act; use larger batches",
        )
    else:
        attachment.told.add("single")  # a smaller last batch is no cause for concern
    if held.charge is not None:
        if held.charge.shape[1] == 1:
            tap.watch.tell("pooled", f"layer {tap.name!r} {ONE_TOKEN}")
            tap.watch.told.add("negative")  # which would follow from it
        tap.watch.look(loss, numbers, held.charge)
