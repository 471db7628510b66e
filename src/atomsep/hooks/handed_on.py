"""What a run hands on in the place of the layer's output, and what becomes of it."""

from __future__ import annotations

import weakref
from typing import NamedTuple

import torch
from torch import Tensor

from atomsep.core.statistics import Statistics


class HandedOn:
    """The tensor that a run handed on.

    Args:
        tensor: the tensor.
        copied: whether it is a copy, so that the latent outlives whoever overwrites it.
        looked_at: whether it matters that somebody overwrites it.

    Attributes:
        tensor: the tensor, while somebody may write to it before the loss is taken.
        copied: as above.
        freed: whether a backward pass came through it and freed the graph behind it.
    """

    def __init__(self, tensor: Tensor, copied: bool, looked_at: bool) -> None:
        self.copied, self.freed = copied, False
        self.tensor = tensor if looked_at else None
        self._reference = weakref.ref(tensor) if looked_at else None
        self._version = tensor._version

    def release(self) -> None:
        """Look at it from now on only if it still exists."""
        self.tensor = None

    def written(self) -> bool:
        """Whether somebody is known to have written to it."""
        tensor = None if self._reference is None else self._reference()
        return tensor is not None and tensor._version != self._version

    def lost(self) -> bool:
        """Whether the latent was overwritten with it."""
        return self.written() and not self.copied

    def watch_backward(self, tensor: Tensor) -> None:
        """Notice a backward pass that comes through the tensor and frees the graph behind it."""
        if not tensor.requires_grad:
            return
        own = weakref.ref(self)  # the graph must not hold the tensor

        def note(gradient: Tensor) -> None:
            handed_on = own()
            if (
                handed_on is not None
                and not torch._C._autograd._get_current_graph_task_keep_graph()
            ):
                handed_on.freed = True

        tensor.register_hook(note)


class Run(NamedTuple):
    """A run whose loss was not taken before the next.

    Attributes:
        statistics: with their graph.
        handed_on: what it handed on; None where that is not watched.
    """

    statistics: Statistics
    handed_on: HandedOn | None = None

    def spent(self) -> bool:
        """Whether its loss cannot have a gradient any more, as far as that is known."""
        return self.handed_on is not None and self.handed_on.freed


def graph_freed(tensor: Tensor) -> bool:
    """Whether a backward pass has freed the node that made a tensor, as far as it tells."""
    try:
        getattr(tensor.grad_fn, "_raw_saved_tensors", None)
    except RuntimeError:
        return True
    return False
