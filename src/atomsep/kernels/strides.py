"""Which tensors the kernels can read where they lie."""

from __future__ import annotations

from itertools import pairwise
from math import gcd
from typing import NamedTuple

from torch import Tensor

from atomsep.layout import Layout


def token_strides(source: Tensor, layout: Layout) -> tuple[int, int, int] | None:
    """Strides of samples, tokens and features; None where tokens are no view of the source.

    Computed without making the view, which would copy where there is none.
    """
    shape, stride = source.shape, source.stride()
    if layout.axes == "length_first":
        return (stride[1], stride[0], stride[2]) if source.dim() == 3 else None
    first, last = (2, source.dim()) if layout.axes == "channels_first" else (1, source.dim() - 1)
    axes = [axis for axis in range(first, last) if shape[axis] != 1]
    if any(stride[i] != shape[j] * stride[j] for i, j in pairwise(axes)):
        return None
    along_tokens = stride[axes[-1]] if axes else 1
    return stride[0], along_tokens, stride[1 if layout.axes == "channels_first" else -1]


class Geometry(NamedTuple):
    """Where the numbers of `(M, N, h)` tokens lie, as the kernels take it.

    Attributes:
        rows: whether features lie together; otherwise tokens do.
        align: a power of two, 16 at most, that divides both strides and the length of the axis
            whose numbers lie together. Those three are passed divided by it and multiplied again
            in the kernel, which tells the compiler how many numbers it may read at once.
        sample: stride of samples, divided.
        wide: stride of tokens where they are rows, else of features, divided.
        tokens: N, divided unless tokens are rows.
        features: h, divided where tokens are rows.
    """

    rows: bool
    align: int
    sample: int
    wide: int
    tokens: int
    features: int


def geometry(tokens: Tensor) -> Geometry:
    """Of a tensor `(M, N, h)` whose tokens or features lie together."""
    _, length, features = tokens.shape
    sample, along_tokens, along_features = tokens.stride()
    rows = features == 1 or along_features == 1
    wide = along_tokens if rows else along_features
    align = gcd(16, sample, wide, features if rows else length)
    return Geometry(
        *(rows, align, sample // align, wide // align),
        *(length if rows else length // align, features // align if rows else features),
    )
