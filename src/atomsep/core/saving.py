"""Whether what autograd saves is kept as it is, or goes through hooks, as in a checkpoint."""

from __future__ import annotations

import inspect
import sys
from typing import Any

import torch

_CHECKPOINT = "torch.utils.checkpoint"


def saved_through_hooks() -> bool | None:
    """Whether tensors are saved through hooks; None where torch does not tell, before 2.8."""
    return None if _look is None else _look(True) is not None


def inside_checkpoint() -> bool:
    """Whether what is saved now may be recomputed: inside of a checkpoint, or under other hooks."""
    hooks = saved_through_hooks()
    if hooks is not None:
        return hooks
    frame = sys._getframe(1)
    while frame.f_back is not None:
        if frame.f_globals.get("__name__") == _CHECKPOINT:
            return True
        frame = frame.f_back
    return False


def checkpointed_region() -> object | None:
    """What stands for the checkpointed region whose forward runs now.

    None outside of non-reentrant checkpoints, and where torch does not tell.
    """
    region: object = _of_checkpoint("frame")
    return region


def recomputed_region() -> object | None:
    """The same for a region that is recomputed now."""
    reference = _of_checkpoint("target_frame_ref")
    region: object = None if reference is None else reference()
    return region


def _of_checkpoint(name: str) -> Any:
    """A variable of the checkpoint that has the innermost hooks."""
    hooks = None if _look is None else _look(True)
    if hooks is None:
        return None
    pack: Any = inspect.unwrap(hooks[0])
    if getattr(pack, "__module__", None) != _CHECKPOINT:
        return None
    names = getattr(getattr(pack, "__code__", None), "co_freevars", ())
    cells = dict(zip(names, pack.__closure__ or (), strict=True))
    return cells[name].cell_contents if name in cells else None


_look: Any = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", None)
