"""Whether what autograd saves is kept as it is, or goes through hooks, as in a checkpoint."""

from __future__ import annotations

import sys

import torch


def saved_through_hooks() -> bool | None:
    """Whether tensors are saved through hooks; None where torch does not tell, before 2.8."""
    look = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", None)
    return None if look is None else look(True) is not None


def inside_checkpoint() -> bool:
    """Whether what is saved now may be recomputed: inside of a checkpoint, or under other hooks."""
    hooks = saved_through_hooks()
    if hooks is not None:
        return hooks
    frame = sys._getframe(1)
    while frame.f_back is not None:
        if frame.f_globals.get("__name__") == "torch.utils.checkpoint":
            return True
        frame = frame.f_back
    return False
