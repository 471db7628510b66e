"""Whether an attachment's hooks act."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.fx import _symbolic_trace
from torch.jit._trace import is_tracing

# Whether torch.export is tracing. Not `torch.compiler.is_exporting()`: until PyTorch 2.12 or so,
# torch.compile takes that for true as well. PyTorch 2.6 has only the other flag, which it sets only
# for strict=False.
_FLAG = next(f for f in ("_is_exporting_flag", "_is_compiling_flag") if hasattr(torch.compiler, f))


def _symbolic() -> bool:
    """Whether torch.fx traces with stand-ins for tensors.

    make_fx sets the same flag, but has tensors and a dispatch mode of its own: there, hooks act.
    """
    if torch.compiler.is_compiling():
        return False
    flag = getattr(_symbolic_trace, "_get_is_fx_tracing", None)  # a function since PyTorch 2.10
    tracing = flag() if flag else vars(_symbolic_trace)["_is_fx_tracing_flag"]
    return (
        bool(tracing) and torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.PROXY) is None
    )


class Switch:
    """Shared by all hooks of an attachment: on unless detached, paused, traced or exported.

    Attributes:
        attached (bool): False once detached.
        pauses (list): one entry per pause in progress; appending and popping are atomic.
    """

    def __init__(self) -> None:
        self.attached = True
        self.pauses: list[None] = []

    def __getstate__(self) -> dict[str, Any]:
        """A copy is not paused: nothing would resume it."""
        return {**self.__dict__, "pauses": []}

    def on(self) -> bool:
        """Whether hooks act now."""
        exported = getattr(torch.compiler, _FLAG) or is_tracing() or _symbolic()
        return self.attached and not self.pauses and not exported


class Hook:
    """A hook on a module, which torch.jit.script would compile with it.

    Attributes:
        marks: whether its module is marked; see `atomsep.hooks.marks`.
    """

    marks = False

    @property
    def __name__(self) -> str:
        """What torch.jit.script asks a hook for first."""
        raise AttributeError(
            "an attached model cannot be scripted: call attachment.detach() before "
            "torch.jit.script, and attach again afterwards. (torch.jit.trace, torch.onnx.export "
            "and torch.export leave the hooks out by themselves.)"
        )


class MethodHook(Hook):
    """A method as a hook."""

    def __init__(self, method: Callable[..., None]) -> None:
        self.method = method

    def __call__(self, *arguments: Any) -> None:
        """Call the method."""
        self.method(*arguments)
