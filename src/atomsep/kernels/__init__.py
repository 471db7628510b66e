"""The same numbers as `atomsep.statistics` and `atomsep.pairs`, computed by Triton kernels.

Each pass is a file, and the plain PyTorch code it must agree with is named there:

| pass | file | launches | plain twin |
|---|---|---|---|
| atoms | `forward.py`, `looks.py` | 1, and a memset for large samples | `forward_slabs` |
| gradient of the latent | `backward.py` | 1 | `backward_slabs` |
| loss and its gradient | `pairs.py` | 1, and a sum of a few numbers | `_AllPairs` |
| gradient of the statistics | `pairs.py` | 1 | `backward_blocks` |

Sizes of blocks are in `blocks.py`, device functions that passes share in `read.py`. Nothing here
imports Triton before a kernel is called. The kernels synchronise with the host nowhere and can be
captured into a CUDA graph; they use no floating-point atomics, and the same input gives the same
bits.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from atomsep.kernels import ops
from atomsep.kernels.strides import token_strides

if TYPE_CHECKING:
    from collections.abc import Sequence

    from atomsep.pairs import Terms
    from atomsep.statistics import Reading, Statistics

FIELDS = 5
"""Per-sample fields: protons, electrons, charge sum, charge square, radius."""

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
    if not available() or source.device.type != ("cpu" if _INTERPRETED else "cuda"):
        return False
    if source.dtype not in _TYPES or (scores is not None and scores.dtype not in _TYPES):
        return False
    if any(other is not None and other.device != source.device for other in (scores, mask)):
        return False
    strides = token_strides(source, reading.layout)
    return strides is not None and 1 in strides[1:]


def supports_pairs(statistics: Statistics) -> bool:
    """Whether the kernels can take these statistics: float32, on one device."""
    kind = "cpu" if _INTERPRETED else "cuda"
    device = statistics.nucleus.device
    return available() and all(
        field.dtype == torch.float32 and field.device == device and field.device.type == kind
        for field in statistics.fields()
    )


def measure_forward(
    source: Tensor,
    scores: Tensor | None,
    mask: Tensor | None,
    count: Tensor,
    reading: Reading,
    copy: bool,
) -> tuple[Tensor | None, ...]:
    """A copy or None, then charge, protons, electrons, charge sum and square, radius, nucleus, s.

    See `atomsep.kernels.forward.measure_forward`; s is what `measure_backward` needs as
    `mean_direction`.
    """
    if torch.compiler.is_compiling():
        layout, feature, norm = reading
        copied, charge, fields, nucleus, mean_direction = ops.measure_forward(
            source, scores, mask, count, layout.axes, layout.skip, feature, norm, copy
        )
        return copied if copy else None, charge, *fields.unbind(0), nucleus, mean_direction
    from atomsep.kernels import forward

    copied, charge, fields, nucleus, mean_direction = forward.measure_forward(
        source, scores, mask, count, reading, copy
    )
    return copied, charge, *fields.unbind(0), nucleus, mean_direction


def measure_backward(
    source: Tensor,
    scores: Tensor | None,
    mask: Tensor | None,
    count: Tensor,
    nucleus: Tensor,
    mean_direction: Tensor,
    reading: Reading,
    grad_passed: Tensor | None,
    per_sample: Sequence[Tensor | None],
    grad_nucleus: Tensor | None,
) -> tuple[Tensor, Tensor | None]:
    """Gradients of source and scores; see `atomsep.kernels.backward.measure_backward`."""
    if torch.compiler.is_compiling():
        layout, feature, norm = reading
        first, second = ops.measure_backward(
            *(source, scores, mask, count, nucleus, mean_direction, layout.axes, layout.skip),
            *(feature, norm, grad_passed, list(per_sample), grad_nucleus),
        )
        return first, None if scores is None else second
    from atomsep.kernels import backward

    return backward.measure_backward(
        *(source, scores, mask, count, nucleus, mean_direction),
        *(reading, grad_passed, per_sample, grad_nucleus),
    )


def pairs_forward(
    statistics: Statistics, terms: Terms, gradient: bool
) -> tuple[Tensor, Tensor | None]:
    """The loss, and the shares of its gradient; see `atomsep.kernels.pairs.pairs_forward`."""
    if torch.compiler.is_compiling():
        loss, shares = ops.pairs_forward(list(statistics.fields()), *terms, gradient)
        return loss, shares if gradient else None
    from atomsep.kernels import pairs

    return pairs.pairs_forward(statistics, terms, gradient)


def pairs_backward(shares: Tensor, grad: Tensor, samples: int) -> tuple[Tensor | None, ...]:
    """The gradient of every field of the statistics, in their order; None for the count."""
    if torch.compiler.is_compiling():
        total = ops.pairs_backward(shares, grad)
    else:
        from atomsep.kernels import pairs

        total = pairs.pairs_backward(shares, grad)
    fields, nucleus = total[: FIELDS * samples], total[FIELDS * samples :]
    *charges, radius = fields.view(FIELDS, samples).unbind(0)
    return *charges, None, radius, nucleus.view(samples, -1)
