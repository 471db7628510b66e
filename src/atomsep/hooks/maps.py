"""Notice learned maps that no optimiser trains.

An optimiser writes to its parameters, which a tensor's version counter shows without asking the
device; fused optimisers leave the counter as it is, so that values must be compared. If the model's
parameters were written to and those of the maps were not, although they have gradients, then they
are missing from the optimiser.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from atomsep.checks import transforms_active

FIRST_LOOK = 8
UNTRAINED = (
    "the learned maps of the loss have gradients but never change, while the model does: pass "
    "attachment.parameters() to the optimiser as well"
)
_COMPARED = 4
"""Parameters of the model whose values are compared, the smallest; one may have no gradient."""


class _Seen(NamedTuple):
    """Parameters at a look: their versions, and copies of some."""

    versions: list[int]
    copies: list[Tensor]

    @staticmethod
    def of(parameters: Sequence[Tensor], compared: Sequence[Tensor]) -> _Seen:
        copies = [parameter.detach().clone() for parameter in compared]
        return _Seen([parameter._version for parameter in parameters], copies)

    def changed(self, parameters: Sequence[Tensor], compared: Sequence[Tensor]) -> bool:
        """Whether any of them was written to since; waits for the device if versions do not say."""
        if self.versions != [parameter._version for parameter in parameters]:
            return True
        pairs = zip(compared, self.copies, strict=True)
        return not all(torch.equal(now.detach(), old.to(now.device)) for now, old in pairs)


class MapsWatch:
    """Compares after 8, 16, 32, ... losses, until one comparison is conclusive."""

    def __init__(self) -> None:
        self.losses = 0
        self.settled = False
        self.before: tuple[_Seen, _Seen] | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Tensors of a copy have versions of their own."""
        return {**self.__dict__, "losses": 0, "before": None}

    def untrained(self, model: nn.Module, criterion: nn.Module) -> bool:
        """Count a loss; whether it shows that the maps are missing from the optimiser."""
        self.losses += 1
        due = self.losses == 1 or (
            self.losses >= FIRST_LOOK and self.losses & (self.losses - 1) == 0
        )
        if self.settled or not due or transforms_active():
            return False
        maps = [p for p in criterion.parameters() if p.requires_grad]
        own = {id(p) for p in maps}
        rest = [p for p in model.parameters() if p.requires_grad and id(p) not in own]
        if not maps:
            self.settled = True
            return False
        if any(p.is_cuda for p in maps) and torch.cuda.is_current_stream_capturing():
            return False  # a graph cannot be waited for
        smallest = sorted(rest, key=Tensor.numel)[:_COMPARED]
        if self.before is None:
            self.before = _Seen.of(maps, maps), _Seen.of(rest, smallest)
            return False
        maps_changed = self.before[0].changed(maps, maps)
        model_changed = maps_changed or self.before[1].changed(rest, smallest)
        self.settled = model_changed
        return model_changed and not maps_changed and any(map(_has_gradient, maps))


def _has_gradient(parameter: Tensor) -> bool:
    return parameter.grad is not None and bool(parameter.grad.any())
