"""The backend in Triton: the same numbers as `atomsep.core.plain`.

| pass | file | launches |
|---|---|---|
| `read_atoms` | `forward.py`, its kernels in `forward_kernels.py` | 1, or 2 for large samples |
| `atoms_gradient` | `backward.py` | 1 |
| `pair_loss`, `pair_loss_of_rows` | `pairs.py` | 2, the second for sums |

`tile.py` holds the device functions that passes share, `blocks.py` the sizes of blocks,
`strides.py` which tensors the kernels can read in place, `launch.py` a launch that takes little
host time, and `ops.py` the passes as operators for torch.compile. Nothing here imports Triton
before a kernel is called. The kernels never synchronise with the host and can be captured into a
CUDA graph; they use no floating-point atomics, and the same input gives the same bits.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
from collections.abc import Callable
from functools import cache, lru_cache, partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from atomsep.core.kernels.strides import token_view

if TYPE_CHECKING:
    from atomsep.core.layout import Layout
    from atomsep.core.statistics import Tokens

OLDEST_TRITON = (3, 4)
"""Earlier compilers refuse some of the kernels, or interpret them wrongly."""


def _find() -> bool:
    """Whether a Triton that is new enough is installed, without importing it."""
    if importlib.util.find_spec("triton") is None:
        return False
    try:
        version = re.match(r"(\d+)\.(\d+)", importlib.metadata.version("triton"))
    except importlib.metadata.PackageNotFoundError:  # nightly builds go by other names
        return True
    return version is None or tuple(map(int, version.groups())) >= OLDEST_TRITON


_FOUND = _find()
_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"  # for tests
_TYPES = (torch.float32, torch.bfloat16, torch.float16)


def supports(tokens: Tokens) -> bool:
    """Whether the kernels can read these tensors as they are.

    They need float32, bfloat16 or float16 on one device, tokens that are a view of the source, and
    features or tokens that are adjacent in memory.
    """
    source, scores, mask, _, reading = tokens
    if not (_FOUND and source.device.type == ("cpu" if _INTERPRETED else "cuda")):
        return False
    if source.dtype not in _TYPES or (scores is not None and scores.dtype not in _TYPES):
        return False
    if any(other is not None and other.device != source.device for other in (scores, mask)):
        return False
    look = _is_adjacent if torch.compiler.is_compiling() else _was_adjacent
    return look(source.shape, source.stride(), reading.layout)


def supports_table(table: Tensor) -> bool:
    """Whether the kernels can read this table of statistics."""
    here = table.device.type == ("cpu" if _INTERPRETED else "cuda")
    return _FOUND and here and table.dtype == torch.float32


def _is_adjacent(shape: tuple[int, ...], stride: tuple[int, ...], layout: Layout) -> bool:
    """Whether tokens are a view, and tokens or features adjacent."""
    view = token_view(shape, stride, layout)
    return view is not None and 1 in (view.along_tokens, view.along_features)


_was_adjacent = lru_cache(maxsize=1024)(_is_adjacent)


@cache
def _launcher(file: str, name: str) -> Callable[..., Any]:
    launcher: Callable[..., Any] = getattr(import_module(f"atomsep.core.kernels.{file}"), name)
    return launcher


def _launch(file: str, name: str, *arguments: Any) -> Any:
    return _launcher(file, name)(*arguments)


read_atoms = partial(_launch, "forward", "read_atoms")
atoms_gradient = partial(_launch, "backward", "atoms_gradient")
pair_loss = partial(_launch, "pairs", "pair_loss")
pair_loss_of_rows = partial(_launch, "pairs", "pair_loss_of_rows")
