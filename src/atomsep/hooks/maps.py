"""Notice learned maps that no optimiser trains.

An optimiser writes to its parameters, which a tensor's version counter shows without asking the
device. If the model's parameters were written to and those of the maps were not, although they have
gradients, then they are missing from the optimiser.
"""

from __future__ import annotations

from typing import Any

from torch import nn

FIRST_LOOK = 8
UNTRAINED = (
    "the learned maps of the loss have gradients but never change, while the model does: pass "
    "attachment.parameters() to the optimiser as well"
)


class MapsWatch:
    """Compares versions after 8, 16, 32, ... losses, until one comparison is conclusive."""

    def __init__(self) -> None:
        self.losses = 0
        self.settled = False
        self.before: tuple[list[int], list[int]] | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Tensors of a copy have versions of their own."""
        return {**self.__dict__, "losses": 0, "before": None}

    def untrained(self, model: nn.Module, criterion: nn.Module) -> bool:
        """Count a loss; whether it shows that the maps are missing from the optimiser."""
        self.losses += 1
        due = self.losses == 1 or (
            self.losses >= FIRST_LOOK and self.losses & (self.losses - 1) == 0
        )
        if self.settled or not due:
            return False
        maps = [p for p in criterion.parameters() if p.requires_grad]
        own = {id(p) for p in maps}
        rest = [p for p in model.parameters() if p.requires_grad and id(p) not in own]
        now = [p._version for p in maps], [p._version for p in rest]
        if self.before is None or not maps:
            self.before, self.settled = now, not maps
            return False
        maps_changed, model_changed = (
            old != new for old, new in zip(self.before, now, strict=True)
        )
        self.settled = maps_changed or model_changed
        return model_changed and not maps_changed and any(p.grad is not None for p in maps)
