"""Which code computes: the kernels where they can, plain PyTorch everywhere else."""

from __future__ import annotations

import os
import warnings
from functools import partialmethod
from typing import TYPE_CHECKING, Any, Literal, Protocol, get_args

import torch
from torch import Tensor

from atomsep.core import kernels, plain

if TYPE_CHECKING:
    from atomsep.core.statistics import Known, Terms, Tokens

Mode = Literal["auto", "triton", "torch"]


class Backend(Protocol):
    """The passes that the autograd node asks for."""

    def read_atoms(
        self, tokens: Tokens, copy: bool = False
    ) -> tuple[Tensor | None, Tensor, Tensor, Tensor | None]:
        """From tokens to statistics.

        Args:
            tokens: the tokens.
            copy: whether to copy the source as well.

        Returns:
            The copy or None, the charges `(M, N)`, the table of statistics `(M, 5 + h')`, and the
            mean direction s `(M, h')`, or None where the backward pass recomputes it.
        """

    def atoms_gradient(
        self,
        tokens: Tokens,
        known: Known,
        grad_passed: Tensor | None,
        grad_table: Tensor,
        scale: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Back to the tokens: `grad_passed + J^T grad_table`, written once.

        Args:
            tokens: as in the forward pass, or with the source that `known.line` belongs to.
            known: what is known from the forward pass.
            grad_passed: the gradient that arrives for the latent itself, if any.
            grad_table: the gradient that arrives for the table.
            scale: a factor of `grad_table`, a scalar.

        Returns:
            The gradients of source and scores; None for the second where there are no scores.
        """

    def pair_loss(
        self, table: Tensor, count: Tensor, terms: Terms, weight: float, gradient: bool
    ) -> tuple[Tensor, Tensor | None]:
        """From statistics to the loss over all pairs.

        Args:
            table: of statistics, `(M, 5 + h')`.
            count: number of real tokens, `(M,)`.
            terms: norm, softening, scale and the weights of energy and constraints.
            weight: factor of the loss and its gradient; above 0.
            gradient: whether to compute it as well.

        Returns:
            The loss, a scalar, and its gradient with respect to the table or None.
        """


class RowsBackend(Protocol):
    """The pass of one process among several."""

    def pair_loss_of_rows(
        self,
        table: Tensor,
        count: Tensor,
        terms: Terms,
        weight: float,
        own: slice,
        absent: Tensor,
        samples: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """What some samples contribute to the loss of all, and its gradient by their rows.

        Args:
            table: statistics of all samples, and rows that stand for nobody.
            count: number of real tokens, one per row.
            terms: norm, softening, scale and the weights of energy and constraints.
            weight: factor of the loss and its gradient; above 0.
            own: the samples.
            absent: true on rows that stand for nobody.
            samples: how many rows stand for somebody, a scalar.
        """


class Guarded:
    """The kernels; in mode "auto", plain PyTorch takes over for good as soon as one fails."""

    failure = ""

    def _run(self, name: str, *arguments: Any) -> Any:
        if not self.failure:
            try:
                return getattr(kernels, name)(*arguments)
            except torch.OutOfMemoryError:
                raise
            except Exception as error:
                if _mode != "auto":
                    raise
                lines = str(error).strip().splitlines() or [""]
                self.failure = f"{type(error).__name__}: {lines[0]}"
                warnings.warn(
                    f"atomsep's Triton kernels failed ({self.failure}), so plain PyTorch computes "
                    f'the atom loss from now on, more slowly; use_kernels("triton") shows the '
                    f'whole error, use_kernels("torch") silences this warning',
                    RuntimeWarning,
                    stacklevel=2,
                )
        return getattr(plain, name)(*arguments)

    read_atoms = partialmethod(_run, "read_atoms")
    atoms_gradient = partialmethod(_run, "atoms_gradient")
    pair_loss = partialmethod(_run, "pair_loss")
    pair_loss_of_rows = partialmethod(_run, "pair_loss_of_rows")


guarded = Guarded()


def backend(by_kernels: bool) -> Backend:
    """What computes, as `wants_kernels` decided."""
    if not by_kernels:
        return plain
    if torch.compiler.is_compiling():
        from atomsep.core.kernels import ops

        return ops
    return guarded


def backend_of(table: Tensor) -> RowsBackend:
    """What computes from a table of statistics alone."""
    fits = _mode != "torch" and not guarded.failure and kernels.supports_table(table)
    return guarded if fits and (_mode == "triton" or table.is_cuda) else plain


def _checked(mode: str, name: str) -> str:
    if mode not in get_args(Mode):
        raise ValueError(f"{name} must be one of {', '.join(get_args(Mode))}, not {mode!r}")
    return mode


_mode = _checked(os.environ.get("ATOMSEP_KERNELS", "auto"), "ATOMSEP_KERNELS")


class use_kernels:
    """Choose what computes the loss, from now on or inside a `with` block.

    The environment variable `ATOMSEP_KERNELS` sets it for a whole process.

    Args:
        mode: "auto" uses the Triton kernels for CUDA tensors that they support and plain PyTorch
            otherwise, also where a kernel turns out not to compile (with a warning that says
            why); "triton" uses the kernels and refuses what they do not support; "torch" always
            uses plain PyTorch.

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


def wants_kernels(tokens: Tokens) -> bool:
    """Whether the kernels compute this call."""
    source = tokens.source
    if _mode == "torch":
        return False
    if _mode == "auto":
        return source.device.type == "cuda" and not guarded.failure and kernels.supports(tokens)
    if not kernels.supports(tokens):
        raise RuntimeError(
            f"the kernels cannot read this latent ({source.dtype}, strides {source.stride()}, on "
            f'{source.device}); use_kernels("auto") falls back to plain PyTorch'
        )
    return True
