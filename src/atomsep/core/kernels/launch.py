"""Launch a kernel again without the search that Triton makes before every launch.

An ordinary launch inspects all arguments to find the program that was compiled for their types,
alignment and divisibility, which takes longer than a small kernel runs. A `Launch` fixes all but
the addresses, so the program that the first launch found is right for all that follow. It is
launched as `program[grid](...)`, Triton's public way to run what `kernel[grid](...)` returned.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

_NOTHING: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()


class Launch:
    """One kernel at fixed sizes and types; only tensors and floats change between calls.

    The kernel's arguments are the tensors, the floats, the numbers and the constants, in this
    order. Which tensors are None, and the type of each, must be the same in every call.

    Args:
        kernel: compiled by Triton when it is first called.
        device: where it runs.
        grid: programs along each axis.
        numbers: integers, which Triton may compile for, and fixed floats.
        warps: per program.
        constants: compiled in, by name.
    """

    def __init__(
        self,
        kernel: Any,
        device: torch.device,
        grid: tuple[int, ...],
        numbers: tuple[int | float | None, ...],
        warps: int,
        constants: dict[str, Any],
    ) -> None:
        assert tuple(constants) == tuple(kernel.arg_names[-len(constants) :])
        self.kernel, self.device = kernel, device
        self.options = {"num_warps": warps, "enable_fp_fusion": True}
        self.grid = (*grid, 1, 1)[:3]
        self.fixed = (*numbers, *constants.values())
        self.again: Callable[..., None] | None = None
        self.may_be_short = device.type == "cuda"

    def __call__(self, tensors: tuple[Tensor | None, ...], floats: tuple[float, ...] = ()) -> None:
        """Launch on the device's current stream."""
        together = 0
        for tensor in tensors:
            if tensor is not None:
                together |= tensor.data_ptr()
        aligned = together & 15 == 0  # otherwise it is another program
        if self.again is not None and aligned:
            try:
                self.again(*tensors, *floats, *self.fixed)
            except TypeError:  # this version of Triton takes other arguments
                self.again, self.may_be_short = None, False
            else:
                return
        program = self.kernel[self.grid](*tensors, *floats, *self.fixed, **self.options)
        if aligned and self.may_be_short and hasattr(program, "__getitem__"):
            self.again = program[self.grid]


def on(device: torch.device) -> contextlib.AbstractContextManager[Any]:
    """Make a device the current one, unless it already is."""
    if device.type != "cuda" or device.index == torch.cuda.current_device():
        return _NOTHING
    return torch.cuda.device(device)
