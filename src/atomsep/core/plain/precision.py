"""Keep autocast out: sums over thousands of tokens do not survive in half precision."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec, TypeVar

import torch
from torch import Tensor

P = ParamSpec("P")
R = TypeVar("R")


def full_precision(
    function: Callable[Concatenate[Tensor, P], R],
) -> Callable[Concatenate[Tensor, P], R]:
    """Run a function with autocast disabled on the device of its first argument."""

    @wraps(function)
    def wrapped(first: Tensor, /, *args: P.args, **kwargs: P.kwargs) -> R:
        with torch.autocast(first.device.type, enabled=False):
            return function(first, *args, **kwargs)

    return wrapped
