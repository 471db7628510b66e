"""Whether an attachment's hooks act."""

from __future__ import annotations

from typing import Any

import torch

# Whether torch.export is tracing. Not `torch.compiler.is_exporting()`: until PyTorch 2.12 or so,
# torch.compile takes that for true as well. PyTorch 2.6 has only the other flag, which it sets only
# for strict=False.
_FLAG = next(f for f in ("_is_exporting_flag", "_is_compiling_flag") if hasattr(torch.compiler, f))


class Switch:
    """Shared by all hooks of an attachment: on unless detached, paused or exported.

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
        return self.attached and not self.pauses and not getattr(torch.compiler, _FLAG)
