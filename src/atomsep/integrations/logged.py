"""What a trainer's logger shows of an attachment: numbers, and the importance as a picture."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from atomsep.hooks.attachment import Attachment

_PIXELS = 8  # a token's width in the picture
_GAP = 2  # tokens between two samples


def parts(attachment: Attachment) -> dict[str, float]:
    """The statistics as `atom/energy` and so on; with several layers, as `atom/LAYER/energy`."""
    stats = attachment.stats
    by_layer = {"": stats} if len(attachment.layers) == 1 else stats
    return {
        f"atom/{layer}/{name}" if layer else f"atom/{name}": float(value)
        for layer, values in by_layer.items()
        for name, value in values.items()
        if name != "training"  # what is logged is of training forwards
    }


def pictures(attachment: Attachment, samples: int) -> dict[str, Tensor]:
    """The importance of the last forward as one picture per layer, by name."""
    importance = attachment.importance
    if len(attachment.layers) == 1:
        return {"atom/importance": picture(importance, samples)}
    return {f"atom/{name}/importance": picture(i, samples) for name, i in importance.items()}


@torch.no_grad()
def picture(importance: Tensor, samples: int) -> Tensor:
    """Charges as colours: red at +1, white at 0, blue at -1.

    Args:
        importance: `(M, H, W)`, drawn side by side, or `(M, L)`, one row per sample.
        samples: how many samples to draw.

    Returns:
        Bytes of shape `(3, height, width)`.

    Example:
        >>> picture(torch.tensor([[1.0, 0.0, -1.0]]), samples=1)[:, 0, ::8].T.tolist()
        [[255, 0, 0], [255, 255, 255], [0, 0, 255]]
    """
    charges = importance[:samples].float().cpu()
    if charges.dim() > 2:
        maps = charges.flatten(1, -2)
        charges = torch.cat(list(F.pad(maps, (0, _GAP))), dim=1)[:, :-_GAP]
    charges = charges.repeat_interleave(_PIXELS, 0).repeat_interleave(_PIXELS, 1)
    colours = torch.stack([1 + charges.clamp(max=0), 1 - charges.abs(), 1 - charges.clamp(min=0)])
    return colours.mul(255).round().clamp(0, 255).to(torch.uint8)
