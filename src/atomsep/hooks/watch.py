"""Notice a broken or useless setting without slowing down the training step.

Three numbers are enough: the loss itself (a NaN or an infinity in any real token makes it one), the
sum of all negative charges, and the share of real tokens whose charge is exactly 0, which reveals a
rectified layer. They are checked in the first eight steps and then in every 32nd. On a GPU they are
copied asynchronously and read once a later step finds the copy complete, so the host never waits.
"""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Callable

import torch
from torch import Tensor

from atomsep.core.statistics import Statistics


class AtomWarning(UserWarning):
    """Training continues, but something is not as it should be."""


ONE_TOKEN = (
    "has one token per sample, so there is nothing to weigh within a sample; attach before pooling"
)

_FIRST_LOOKS = 8
_ENOUGH_TOKENS = 16


class Watch:
    """Warns, once each, of what makes the loss of a layer useless.

    Args:
        name: the layer's name, for the messages.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.steps = 0
        self.told: set[str] = set()
        self.looks = 0
        self.blanks = 0
        self.waiting: tuple[Tensor, torch.cuda.Event | None] | None = None

    def __getstate__(self) -> dict[str, object]:
        """Copies start with nothing in progress."""
        return {**self.__dict__, "waiting": None}

    def due(self) -> bool:
        """Whether this step is one of those that are looked at."""
        return self.steps < _FIRST_LOOKS or self.steps % 32 == 0

    def look(
        self,
        loss: Tensor,
        statistics: Statistics,
        charge: Tensor,
        count_real: Callable[[], Tensor | None],
    ) -> None:
        """Read the numbers of an earlier step; now and then leave those of this one.

        Args:
            loss: of this step.
            statistics: that it was computed from.
            charge: `(M, N)`, 0 on padding.
            count_real: counts the tokens that are no padding; None if that is not known.
        """
        if loss.is_cuda:
            with torch.cuda.device(loss.device):
                if torch.cuda.is_current_stream_capturing():
                    return  # a graph can be neither asked nor waited for
        self._read()
        due = self.due()
        self.steps += 1
        if not due:
            return
        with torch.no_grad():
            negative, zeros = statistics.electrons.sum(), loss.new_zeros(())
            if "negative" not in self.told and charge.numel() >= _ENOUGH_TOKENS:
                zeros = _share_of_zeros(charge, count_real()).to(loss.dtype)
            numbers = torch.stack([loss, negative, zeros])
            event = None
            if loss.is_cuda:
                numbers = numbers.to("cpu", non_blocking=True)
                event = torch.cuda.current_stream(loss.device).record_event()
        self.waiting = (numbers, event)
        if loss.device.type == "cpu":
            self._read()

    def _read(self) -> None:
        waiting = self.waiting  # other threads may replace it
        if waiting is None:
            return
        numbers, event = waiting
        if event is not None and not event.query():
            return
        self.waiting = None
        loss, negative, zeros = numbers.tolist()
        self.looks += zeros < 1
        if not math.isfinite(loss):
            self.tell(
                "finite",
                f"the atom loss of layer {self.name!r} is {loss}: its output holds NaN or Inf, a "
                f"mask leaves a sample without tokens, or nuclei coincide while softening is 0; "
                f"check the model up to this layer",
            )
        elif negative > 0:
            self.told.add("negative")  # there is a negative charge: nothing to warn of
        elif zeros == 1:
            # as with norms that start at 0, such as the last one of each block in timm
            self.blanks += 1
            if self.blanks > _FIRST_LOOKS:
                self.tell(
                    "negative",
                    f"layer {self.name!r} gives nothing but zeros, so there are no charges; attach "
                    f"to another layer",
                )
        elif zeros > 0.1 or self.looks >= _FIRST_LOOKS:
            # rectified, as the zeros show at once, or positive for another reason
            self.tell(
                "negative",
                f"layer {self.name!r} gives no negative scores, so no charge can be negative and "
                f"atom modeling degenerates; attach before the activation, for example to the "
                f"normalisation that feeds it, or use a learned charge",
            )

    def tell(self, topic: str, message: str) -> None:
        """Warn of a topic, the first time only."""
        tell_once(self.told, topic, message)


def _share_of_zeros(charge: Tensor, real: Tensor | None) -> Tensor:
    """The share of real tokens without a charge; 0 or 1 if their number is not known."""
    zeros = (charge == 0).sum()
    if real is None:
        return zeros == charge.numel()
    return (zeros - (charge.numel() - real)) / real


def tell_once(told: set[str], topic: str, message: str) -> None:
    """Warn unless the topic is among those told, and add it to them."""
    if topic not in told:
        told.add(topic)
        warnings.warn(message, AtomWarning, stacklevel=_callers_level())


def _callers_level() -> int:
    """How far up the stack the first line outside this package and torch is."""
    level, frame = 1, sys._getframe(1)
    inside = ("atomsep.", "torch.")
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).startswith(inside):
        level, frame = level + 1, frame.f_back
    return level
