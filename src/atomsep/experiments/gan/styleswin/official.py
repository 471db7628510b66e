"""Published StyleSwin checkpoints, in the networks of this package.

The parameters have the same names. What the published state holds besides them follows from the
sizes and is not kept here:

| published name | here |
|---|---|
| `...attn.N.relative_position_index` | `attention.relative_bias` |
| `...attn_mask2` | `attention.shift_mask` |
| `...upsample.sin_pos_embed._float_tensor` | holds nothing |
| `....kernel` | `filters.Filter` and `filters.Double` |
| `....dwt.ll`, `lh`, `hl`, `hh`, and of `iwt` | `filters.haar` and `filters.inverse_haar` |

A checkpoint has the states `g`, `g_ema` and `d`, those of their optimisers, and the options of the
training:

    generator = Generator(size=256)
    checkpoint = read_official(path)
    generator.load_state_dict(from_official(checkpoint["g_ema"]))
"""

from __future__ import annotations

import re
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

FOLLOWS = re.compile(
    r"(\.relative_position_index|\.attn_mask2|\._float_tensor|\.kernel|\b[di]wt\.[lh][lh])$"
)
"""Names of what follows from the sizes."""


def read_official(path: str | Path) -> dict[str, Any]:
    """The content of a published checkpoint, on the CPU, without running code from the file.

    Besides tensors it holds the options of the training (`args`), an `argparse.Namespace`, which
    `torch.load` with `weights_only=True` refuses unless it is allowed.

    Args:
        path: the file.

    Returns:
        The states of the networks (`g`, `g_ema`, `d`) and of their optimisers (`g_optim`,
        `d_optim`), and `args`.
    """
    with torch.serialization.safe_globals([Namespace]):
        checkpoint: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    return checkpoint


def from_official(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A published state as `load_state_dict` of the network here takes it.

    Args:
        state: of the generator or of the discriminator with spectral norm.

    Example:
        >>> import torch
        >>> one = torch.ones(1)
        >>> list(from_official({"style.1.bias": one, "to_rgbs.0.upsample.kernel": one}))
        ['style.1.bias']
    """
    return {name: value for name, value in state.items() if not FOLLOWS.search(name)}
