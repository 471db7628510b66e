"""Whether an attachment's hooks act."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

exporting: Callable[[], bool] = getattr(
    torch.compiler, "is_exporting", lambda: torch.compiler._is_compiling_flag
)
"""Whether torch.export is tracing. PyTorch 2.6 has only the flag, and only for strict=False."""


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
        return self.attached and not self.pauses and not exporting()
