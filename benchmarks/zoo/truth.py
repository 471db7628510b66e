"""Where the tokens of every layer are, found without the code under test.

A model runs on three batches. The axis that follows the number of samples is the batch, the axes
that follow the size of the input are the tokens, and the one that stays holds the features. Class
tokens are what does not grow with the area of the image, unless it is as long as another input, a
text: these tokens count. The padding of a layer follows from running short inputs alone: what a
short sample has there, without padding, is real.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

SAMPLES, FEW = 5, 2
"""Samples in the batches that are compared, and in those that only show which axes change."""

Batch = tuple[Any, ...] | dict[str, Any]


@dataclass(frozen=True)
class Subject:
    """A model under test, in two sizes of its input.

    Attributes:
        build: gives the model for inputs of the usual (0) or of the other (1) size.
        inputs: gives a batch of so many samples of size 0 or 1.
        area: how much larger images of size 1 are; None for sequences, whose size 1 is shorter.
        padded: gives a batch of size 0 in which all samples but the first are only as long as
            those of size 1, with the masks that say so; None if the model takes no mask.
    """

    build: Callable[[int], nn.Module]
    inputs: Callable[[int, int], Batch]
    area: float | None = None
    padded: Callable[[int], Batch] | None = None


@dataclass(frozen=True)
class Truth:
    """Where the tokens of a layer are.

    Attributes:
        shape: the output's shape with `SAMPLES` samples.
        batch: the axis of the samples.
        feature: the axis of the features.
        skip: tokens in front that are not part of the image.
        short: tokens of a short sample; None where the length does not depend on the input's.
        problem: why nothing else is known; "" where it is.
    """

    shape: tuple[int, ...]
    batch: int = 0
    feature: int = 0
    skip: int = 0
    short: int | None = None
    problem: str = ""

    def tokens(self, latent: Tensor) -> Tensor:
        """The output as `(M, N, h)`."""
        moved = latent.movedim((self.batch, self.feature), (0, -1))
        return moved.flatten(1, -2)[:, self.skip :]

    def mask(self) -> Tensor | None:
        """The padding of the padded batch as `(M, N)`, true on real tokens."""
        rest = (s for axis, s in enumerate(self.shape) if axis not in (self.batch, self.feature))
        count = torch.Size(rest).numel() - self.skip
        if self.short is None or self.short == count:
            return None
        mask = torch.ones(SAMPLES, count, dtype=torch.bool)
        mask[1:, self.short :] = False
        return mask

    def __str__(self) -> str:
        if self.problem:
            return self.problem
        names = ["token"] * len(self.shape)
        names[self.batch], names[self.feature] = "batch", "feature"
        return " ".join(names) + (f", {self.skip} in front" if self.skip else "")


def call(model: nn.Module, batch: Batch) -> Any:
    return model(**batch) if isinstance(batch, dict) else model(*batch)


def latent_of(output: Any) -> tuple[Any, Tensor] | None:
    """The first floating-point tensor with tokens in an output, and its key."""
    if isinstance(output, Tensor):
        entries: Any = [(None, output)]
    elif isinstance(output, Mapping):
        entries = output.items()
    else:
        entries = enumerate(output) if isinstance(output, (tuple, list)) else []
    for key, value in entries:
        if isinstance(value, Tensor) and value.is_floating_point() and value.dim() >= 3:
            return key, value
    return None


def find_truths(subject: Subject) -> dict[str, Truth]:
    """The truth about every layer with tokens, in the order in which they end."""
    changed = _shapes(subject.build(1), subject.inputs(FEW, 1))
    batch = subject.inputs(FEW, 0)
    few = _shapes(subject.build(0), batch)
    texts = (
        {t.shape[1] for t in batch.values() if t.dim() == 3} if isinstance(batch, dict) else set()
    )
    usual = _shapes(subject.build(0), subject.inputs(SAMPLES, 0))
    return {
        name: _compare(shape, few[name], changed[name], subject.area, texts)
        for name, shape in usual.items()
        if name in few and name in changed
    }


def _shapes(model: nn.Module, batch: Batch) -> dict[str, tuple[int, ...]]:
    found: dict[str, tuple[int, ...]] = {}

    def note(name: str, output: Any) -> None:
        before = found.pop(name, None)
        picked = latent_of(output)
        if picked is not None:
            shape = tuple(picked[1].shape)
            found[name] = shape if before in (None, shape) else ()  # several runs that differ

    handles = [
        module.register_forward_hook(lambda _, __, output, name=name: note(name, output))
        for name, module in model.named_modules()
        if name
    ]
    try:
        with torch.no_grad():
            call(model, batch)
    finally:
        for handle in handles:
            handle.remove()
    return found


def _compare(
    usual: tuple[int, ...],
    few: tuple[int, ...],
    changed: tuple[int, ...],
    area: float | None,
    texts: set[int],
) -> Truth:
    if () in (usual, few, changed):
        return Truth((), problem="several shapes in one forward")
    unknown = "not known from the sizes"
    if not len(usual) == len(few) == len(changed) <= 5:
        return Truth(usual, problem=unknown)
    batch = [axis for axis in range(len(usual)) if usual[axis] != few[axis]]
    if len(batch) != 1:
        return Truth(usual, problem="no batch axis" if not batch else unknown)
    if (usual[batch[0]], few[batch[0]], changed[batch[0]]) != (SAMPLES, FEW, FEW):
        return Truth(usual, problem="samples folded with something else")
    rest = [axis for axis in range(len(usual)) if axis != batch[0]]
    tokens = [axis for axis in rest if few[axis] != changed[axis]]
    sizes = [usual[axis] for axis in tokens]
    if len(rest) - len(tokens) != 1 or min(sizes, default=1) < 1:
        return Truth(usual, problem=unknown)
    [feature] = set(rest) - set(tokens)
    now, then = (torch.Size(s[axis] for axis in tokens).numel() for s in (few, changed))
    pairs = len(set(sizes)) == 1 if area is None else then / now > area**1.5
    if len(tokens) > 1 and pairs:
        return Truth(usual, problem="tokens by tokens, as attention has")
    if now < 2:
        return Truth(usual, problem="a single token")
    if area is None:
        return Truth(usual, batch[0], feature, 0, then)
    skip, off = divmod(area * now - then, area - 1) if len(tokens) == 1 else (0, 0)
    if off or not 0 <= skip < now:
        return Truth(usual, problem="tokens that do not grow with the image")
    return Truth(usual, batch[0], feature, 0 if skip in texts else int(skip))
