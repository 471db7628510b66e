"""Notice an attachment that was left on a layer, as by a notebook cell that ran twice."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from atomsep.hooks.attachment import Attachment
    from atomsep.hooks.reader import LayerReader
    from atomsep.hooks.tap import LayerTap

LEFT_OVER = (
    "Another attachment is on the same layer: if this one is left over, as from a notebook cell "
    "that ran twice, detach() it"
)


def others(attachment: Attachment, reader: LayerReader) -> list[LayerTap]:
    """The hooks that other attachments have on a layer."""
    hooks: Iterable[Any] = reader.layer._forward_hooks.values()
    taps = [hook for hook in hooks if hasattr(hook, "reader")]  # those of copied parts have none
    return [tap for tap in taps if tap.attachment is not attachment]


def warn_of_earlier(attachment: Attachment, reader: LayerReader) -> None:
    """Warn if an attachment that differs in nothing but the weight is on the layer already.

    Several on one layer are fine where they differ: in the loss, its maps, the tensor that they
    read, its layout or the skipped tokens.
    """
    for tap in others(attachment, reader):
        if _settings(tap.attachment, tap.reader) == _settings(attachment, reader):
            attachment.tell(
                "earlier",
                f"an earlier attachment on the same layer {reader.name!r} is still attached, with "
                f"the same settings, and keeps acting. If the code ran twice, as a notebook cell "
                f"does, remove the earlier one before you attach: "
                f"for each in atomsep.attachments(model): each.detach()",
            )


def _settings(attachment: Attachment, reader: LayerReader) -> tuple[object, ...]:
    loss, layout = attachment.criterion, reader.layout
    maps, sampling = (loss.charge, loss.position), (loss.pairs, loss.tokens)
    how = loss.terms, maps, sampling, loss.ranks.group, attachment.conduct
    return *how, reader.select, layout.axes, layout.skip_tokens
