"""Keep autocast out: sums over thousands of tokens do not survive in half precision."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import torch

P = ParamSpec("P")
R = TypeVar("R")


def full_precision(function: Callable[P, R]) -> Callable[P, R]:
    """Run a function with autocast disabled on the device of its first argument."""

    @wraps(function)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        tensor: Any = getattr(args[0], "source", args[0])  # of tokens, or a table
        with torch.autocast(tensor.device.type, enabled=False):
            return function(*args, **kwargs)

    return wrapped
