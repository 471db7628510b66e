"""Which code computes: the kernels where they can, plain PyTorch everywhere else."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Literal

from atomsep.core import kernels

if TYPE_CHECKING:
    from torch import Tensor

    from atomsep.core.statistics import Reading

Mode = Literal["auto", "triton", "torch"]

_MODES = ("auto", "triton", "torch")


def _checked(mode: str, name: str) -> str:
    if mode not in _MODES:
        raise ValueError(f"{name} must be one of {', '.join(_MODES)}, not {mode!r}")
    return mode


_mode = _checked(os.environ.get("ATOMSEP_KERNELS", "auto"), "the variable ATOMSEP_KERNELS")


class use_kernels:
    """Choose what computes the loss, from now on or inside a `with` block.

    The environment variable `ATOMSEP_KERNELS` sets it for a whole process.

    Args:
        mode: "auto" takes the Triton kernels for CUDA tensors that they support and plain PyTorch
            otherwise; "triton" takes the kernels and refuses what they do not support; "torch"
            takes plain PyTorch always.

    Example:
        >>> import torch
        >>> from atomsep import AtomLoss
        >>> with use_kernels("torch"):
        ...     loss = AtomLoss()(torch.randn(2, 3, 4))
    """

    def __init__(self, mode: Mode) -> None:
        global _mode
        self.before = _mode
        _mode = _checked(mode, "mode")

    def __enter__(self) -> None:
        return None

    def __exit__(self, *exc: object) -> None:
        global _mode
        _mode = self.before


def for_tokens(
    source: Tensor, scores: Tensor | None, mask: Tensor | None, reading: Reading
) -> bool:
    """Whether the kernels are to read these tokens."""
    if _mode == "torch" or (_mode == "auto" and source.device.type != "cuda"):
        return False
    if kernels.supports(source, scores, mask, reading):
        return True
    if _mode == "triton":
        raise RuntimeError(
            f"the kernels cannot read this latent ({source.dtype}, strides {source.stride()}, on "
            f'{source.device}); use_kernels("auto") falls back to plain PyTorch'
        )
    return False


def for_pairs(table: Tensor) -> bool:
    """Whether the kernels are to take a table of statistics."""
    if _mode == "torch" or (_mode == "auto" and table.device.type != "cuda"):
        return False
    return kernels.supports_pairs(table)
