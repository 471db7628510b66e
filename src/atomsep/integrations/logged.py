"""What a trainer's logger shows of an attachment: numbers, and the importance as a picture."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from atomsep.hooks.attachment import Attachment

_PIXELS = 8  # a token's width in the picture
_GAP = 2  # tokens between two samples


def check_attachment(attachment: Any, callback: str) -> Attachment:
    """The attachment that a callback was given.

    Raises:
        TypeError: it is something else, for example the model.
    """
    if isinstance(attachment, Attachment):
        return attachment
    got = attachment if isinstance(attachment, type) else type(attachment)
    raise TypeError(
        f"{callback} takes what atomsep.attach returned, not {got.__name__}; write "
        f"{callback}(atomsep.attach(model, layer))"
    )


def prefixes(attachment: Attachment, together: Sequence[Attachment] = ()) -> dict[str, str]:
    """What the names of each layer's values begin with: `atom/`, or `atom/LAYER/` if several log.

    Args:
        attachment: whose layers are meant.
        together: all attachments of the trainer; a layer that is in two of them gets a number.
    """
    layers = [(one, name) for one in together or [attachment] for name in one.layers]
    if len(layers) == 1:
        return dict.fromkeys(attachment.layers, "atom/")
    found = {}
    for name in attachment.layers:
        number = [one for one, other in layers if other == name].index(attachment) + 1
        found[name] = f"atom/{name}/" if number == 1 else f"atom/{name}:{number}/"
    return found


def parts(attachment: Attachment, together: Sequence[Attachment] = ()) -> dict[str, float]:
    """The statistics as `atom/energy` and so on; see `prefixes`."""
    return {
        prefix + name: float(value)
        for prefix, values in _by_prefix(attachment, attachment.stats, together)
        for name, value in values.items()
        if name != "training"  # what is logged is of training forwards
    }


def pictures(
    attachment: Attachment, samples: int, together: Sequence[Attachment] = ()
) -> dict[str, Tensor]:
    """The importance of the last forward as one picture per layer, by name."""
    importance = _by_prefix(attachment, attachment.importance, together)
    return {f"{prefix}importance": picture(each, samples) for prefix, each in importance}


def _by_prefix(
    attachment: Attachment, values: Any, together: Sequence[Attachment]
) -> Iterator[tuple[str, Any]]:
    for name, prefix in prefixes(attachment, together).items():
        yield prefix, values if len(attachment.layers) == 1 else values[name]


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
