"""Which tensors the kernels can read in place."""

from __future__ import annotations

from itertools import pairwise
from math import gcd, prod
from typing import NamedTuple

import torch
from torch import Tensor

from atomsep.core.layout import Layout


def empty_like(source: Tensor, layout: Layout) -> Tensor:
    """New memory like a source whose tokens are a view; see `Layout.empty_like`."""
    fresh = torch.empty_like(source)
    return fresh if fresh.stride() == source.stride() else layout.empty_like(source)


class View(NamedTuple):
    """Tokens `(M, N, h)` of a tensor, and their strides."""

    samples: int
    tokens: int
    features: int
    along_samples: int
    along_tokens: int
    along_features: int


def token_view(shape: tuple[int, ...], stride: tuple[int, ...], layout: Layout) -> View | None:
    """The tokens of a tensor of this shape; None where they are not a view of it.

    Computed without making the view, which would copy where it is impossible.
    """
    if layout.axes == "length_first":
        if len(shape) != 3:
            return None
        return View(shape[1], shape[0] - layout.skip, shape[2], stride[1], stride[0], stride[2])
    channels_first = layout.axes == "channels_first"
    first, last = (2, len(shape)) if channels_first else (1, len(shape) - 1)
    axes = [axis for axis in range(first, last) if shape[axis] != 1]
    if any(stride[i] != shape[j] * stride[j] for i, j in pairwise(axes)):
        return None
    along_tokens = stride[axes[-1]] if axes else 1
    features = 1 if channels_first else -1
    return View(
        *(shape[0], prod(shape[first:last]) - layout.skip, shape[features]),
        *(stride[0], along_tokens, stride[features]),
    )


def score_at(view: View, feature: int | None) -> int:
    """The feature that is the score, from 0; one that no token has where scores are separate."""
    return 1 << 30 if feature is None else feature % view.features


class Geometry(NamedTuple):
    """Where the numbers of `(M, N, h)` tokens are, in the form the kernels take.

    Attributes:
        rows: whether features are adjacent; otherwise tokens are.
        align: a power of two that divides both strides and the length of the adjacent axis. Those
            three are passed divided by it and multiplied again in the kernel, which tells the
            compiler how many numbers it can read at once. At most 16 features, or 4 tokens: a
            thread repeats the work per token for each of its tokens.
        tokens: N, divided unless tokens are rows.
        features: h, divided where tokens are rows.
        sample: stride of samples, divided.
        wide: stride of tokens where they are rows, otherwise of features, divided.
    """

    rows: bool
    align: int
    tokens: int
    features: int
    sample: int
    wide: int


def geometry(view: View) -> Geometry:
    """The geometry of a view whose tokens or features are adjacent."""
    rows = view.features == 1 or view.along_features == 1
    wide = view.along_tokens if rows else view.along_features
    together = gcd(16, view.features) if rows else gcd(4, view.tokens)
    align = gcd(together, view.along_samples, wide)
    return Geometry(
        *(rows, align, view.tokens if rows else view.tokens // align),
        view.features // align if rows else view.features,
        *(view.along_samples // align, wide // align),
    )
