"""Which checkpointed regions ran a layer in training, so that their recomputation does the same."""

from __future__ import annotations

from typing import Any
from weakref import WeakSet

from atomsep.checks import in_backward
from atomsep.core.saving import checkpointed_region, recomputed_region


class Regions:
    """The regions in which training forwards of a layer ran, while their graph lives."""

    def __init__(self) -> None:
        self.noted: WeakSet[Any] = WeakSet()

    def note(self) -> None:
        """Remember the region in which a training forward runs now."""
        region = checkpointed_region()
        if region is not None:
            self.noted.add(region)

    def repeat(self, training: bool) -> bool | None:
        """Whether such a forward is recomputed now; None if nothing is recomputed.

        A region repeats what its forward did, although the attachment may be paused or the model
        in eval mode by then.

        Args:
            training: what to answer where torch does not tell which region it is.
        """
        if not in_backward():
            return None
        region = recomputed_region()
        if region is not None:
            return region in self.noted
        return True if training else None
