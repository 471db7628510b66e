"""The same numbers as `atomsep.core.plain.atoms` and `atomsep.core.plain.pairs`, computed by Triton kernels.

Each pass is a file, and the plain PyTorch code it must agree with is named there:

| pass | file | launches | plain twin |
|---|---|---|---|
| atoms | `forward.py`, `looks.py` | 1, or 2 for large samples | `slabs.forward_slabs` |
| gradient of the latent | `backward.py` | 1 | `slabs.backward_slabs` |
| loss and its gradient | `pairs.py` | 2, the second of sums | `pairs.backward_blocks` |

Sizes of blocks are in `blocks.py`, device functions that passes share in `read.py`; `launch.py`
launches again what was launched before, for little host time. Nothing here
imports Triton before a kernel is called. The kernels synchronise with the host nowhere and can be
captured into a CUDA graph; they use no floating-point atomics, and the same input gives the same
bits.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
from functools import lru_cache
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from atomsep.core.kernels import ops
from atomsep.core.kernels.strides import token_view

if TYPE_CHECKING:
    from atomsep.core.layout import Layout
    from atomsep.core.plain.pairs import Terms
    from atomsep.core.statistics import Reading

OLDEST_TRITON = (3, 4)
"""Earlier compilers refuse some of the kernels, or interpret them wrongly."""


def _find() -> bool:
    """Whether a Triton that is new enough is installed, without importing it."""
    if importlib.util.find_spec("triton") is None:
        return False
    try:
        version = importlib.metadata.version("triton")
    except importlib.metadata.PackageNotFoundError:  # nightly builds go by other names
        return True
    return tuple(int(part) for part in version.split(".")[:2]) >= OLDEST_TRITON


_FOUND = _find()
_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
_TYPES = (torch.float32, torch.bfloat16, torch.float16)


def available() -> bool:
    """Whether kernels can run: Triton 3.4 or newer, and a GPU or Triton's interpreter.

    The interpreter (`TRITON_INTERPRET=1`, set before Triton is imported) is for tests.
    """
    return _FOUND and (_INTERPRETED or torch.cuda.is_available())


def supports(source: Tensor, scores: Tensor | None, mask: Tensor | None, reading: Reading) -> bool:
    """Whether the kernels can read these tensors as they are.

    They need float32, bfloat16 or float16 on one device, tokens that are a view of the source, and
    features or tokens that lie next to each other.
    """
    if not (_FOUND and source.device.type == ("cpu" if _INTERPRETED else "cuda")):
        return False
    if source.dtype not in _TYPES or (scores is not None and scores.dtype not in _TYPES):
        return False
    if any(other is not None and other.device != source.device for other in (scores, mask)):
        return False
    look = _lies_together if torch.compiler.is_compiling() else _seen_together
    return look(source.shape, source.stride(), reading.layout)


def _lies_together(shape: tuple[int, ...], stride: tuple[int, ...], layout: Layout) -> bool:
    """Whether tokens are a view, and tokens or features next to each other."""
    view = token_view(shape, stride, layout)
    return view is not None and 1 in (view.along_tokens, view.along_features)


_seen_together = lru_cache(maxsize=1024)(_lies_together)


def supports_pairs(table: Tensor) -> bool:
    """Whether the kernels can take this table of statistics: float32, where they run."""
    kind = "cpu" if _INTERPRETED else "cuda"
    return _FOUND and table.dtype == torch.float32 and table.device.type == kind


def measure_forward(
    source: Tensor,
    scores: Tensor | None,
    mask: Tensor | None,
    count: Tensor,
    reading: Reading,
    copy: bool,
) -> tuple[Tensor | None, Tensor, Tensor, Tensor]:
    """A copy or None, the charges, the table of statistics, and s for the backward pass.

    See `atomsep.core.kernels.forward.measure_forward`.
    """
    if torch.compiler.is_compiling():
        layout, feature, norm = reading
        copied, charge, table, mean_direction = ops.measure_forward(
            source, scores, mask, count, layout.axes, layout.skip, feature, norm, copy
        )
        return copied if copy else None, charge, table, mean_direction
    from atomsep.core.kernels import forward

    return forward.measure_forward(source, scores, mask, count, reading, copy)


def measure_backward(
    source: Tensor,
    scores: Tensor | None,
    mask: Tensor | None,
    count: Tensor,
    table: Tensor,
    mean_direction: Tensor,
    reading: Reading,
    grad_passed: Tensor | None,
    grad_table: Tensor,
    scale: Tensor | None = None,
    line: tuple[Tensor, Tensor] | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Gradients of source and scores; see `atomsep.core.kernels.backward.measure_backward`."""
    if torch.compiler.is_compiling():
        layout, feature, norm = reading
        grad_table = grad_table if scale is None else grad_table * scale
        if line is not None:  # where a compiler takes the backward pass alone
            stretch, shift = (v.view(-1, *[1] * (source.dim() - 2)) for v in line)
            source = (source * stretch + shift).to(source.dtype)
        first, second = ops.measure_backward(
            *(source, scores, mask, count, table, mean_direction, layout.axes, layout.skip),
            *(feature, norm, grad_passed, grad_table),
        )
        return first, None if scores is None else second
    from atomsep.core.kernels import backward

    return backward.measure_backward(
        *(source, scores, mask, count, table, mean_direction, reading),
        *(grad_passed, grad_table, scale, line),
    )


def pairs_forward(
    table: Tensor, count: Tensor, terms: Terms, gradient: bool, weight: float = 1.0
) -> tuple[Tensor, Tensor | None]:
    """The loss, and its gradient if asked for; see `atomsep.core.kernels.pairs.pairs_forward`."""
    if torch.compiler.is_compiling():
        loss, slopes = ops.pairs_forward(table, count, *terms, gradient)
        return weight * loss, weight * slopes if gradient else None
    from atomsep.core.kernels import pairs

    return pairs.pairs_forward(table, count, terms, gradient, weight)


def pairs_gradient(
    table: Tensor, count: Tensor, terms: Terms, grad: Tensor, weight: float = 1.0
) -> Tensor:
    """The gradient alone, times the one that arrives; see `atomsep.core.kernels.pairs`."""
    if torch.compiler.is_compiling():
        _, slopes = ops.pairs_forward(table, count, *terms, True)
        return torch.mul(slopes, weight * grad)
    from atomsep.core.kernels import pairs

    return pairs.pairs_gradient(table, count, terms, grad, weight)
