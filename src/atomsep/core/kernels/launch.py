"""Launch a kernel again without the search that Triton makes before every launch.

An ordinary launch looks at all arguments to find the program that was compiled for their types,
alignment and divisibility, which takes longer than a small kernel runs. A `Launch` fixes all but
the addresses, so what the first launch found is right for all that follow.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch
import triton
from torch import Tensor

_NOTHING: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()


class Launch:
    """One kernel at fixed sizes and types; only tensors and floats change from call to call.

    The kernel's arguments are the tensors, the floats, the numbers and the constants, in this order. Which
    tensors are None, and the type of each, must be the same in every call.

    Args:
        kernel: compiled by Triton where it is first called.
        device: where it runs.
        grid: programs along each axis.
        numbers: integers, which Triton may compile for, and fixed floats.
        warps: of a program.
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
        self.may_be_short = True
        self.compiled: Any = None

    def __call__(
        self,
        tensors: tuple[Tensor | None, ...],
        floats: tuple[float, ...] = (),
    ) -> None:
        """Launch on the device's current stream."""
        if self.again is not None and not _is_watched():
            pointers = [None if tensor is None else tensor.data_ptr() for tensor in tensors]
            together = 0
            for pointer in pointers:
                together |= pointer or 0
            if together & 15 == 0:  # else another program is due, and the ordinary launch has it
                try:
                    self.again(*pointers, *floats, *self.fixed)
                except TypeError:  # arguments that this version of Triton does not take
                    self.again, self.may_be_short = None, False
                else:
                    return
        compiled = self.kernel[self.grid](*tensors, *floats, *self.fixed, **self.options)
        aligned = all(tensor is None or tensor.data_ptr() % 16 == 0 for tensor in tensors)
        if aligned and self.may_be_short:
            self.again = self._shortcut(compiled)

    def _shortcut(self, compiled: Any) -> Callable[..., None] | None:
        """A launch of what was compiled; None under the interpreter, or where Triton changed."""
        names = ("run", "function", "packed_metadata")
        if self.device.type != "cuda" or not all(hasattr(compiled, name) for name in names):
            return None
        run, function, metadata = (getattr(compiled, name) for name in names)
        self.compiled = compiled  # which unloads the function when nobody holds it
        stream_of = triton.runtime.driver.active.get_current_stream
        (x, y, z), index = self.grid, self.device.index

        def launch(*arguments: Any) -> None:
            run(x, y, z, stream_of(index), function, metadata, None, None, None, *arguments)

        return launch


def _is_watched() -> bool:
    """Whether a profiler asks Triton to be called at every launch."""
    hook = triton.knobs.runtime.launch_enter_hook
    return bool(getattr(hook, "calls", hook))


def on(device: torch.device) -> contextlib.AbstractContextManager[Any]:
    """Makes a device the current one, unless it is already."""
    if device.type != "cuda" or device.index == torch.cuda.current_device():
        return _NOTHING
    return torch.cuda.device(device)
