"""Bring a model's own padding mask to the layer, without the user wiring it."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor, nn

MaskSource = (
    str | Callable[[tuple[Any, ...], dict[str, Any]], Tensor | None] | Literal[False] | None
)


class MaskSlot:
    """The mask of the call under way, shared by the taps that note it and the layer's hook."""

    def __init__(self) -> None:
        self.value: Tensor | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Copies start without a mask."""
        return {"value": None}


class MaskTap:
    """A forward pre-hook that notes the mask a module is called with.

    Modules around a layer hand the mask on, so of several calls the innermost counts; what a
    model makes of its mask on the way (four axes, numbers to add) is no mask of tokens and is
    passed over.

    Args:
        slot: where to note it.
        host: the module whose call brings the mask.
        source: name of an argument of the host's forward, or a callable of `(args, kwargs)`.
        outermost: whether the mask is the user's own, to be refused if it does not fit.
    """

    def __init__(self, slot: MaskSlot, host: nn.Module, source: Any, outermost: bool) -> None:
        self.slot = slot
        self.outermost = outermost
        self.source = source
        self.position = -1
        if isinstance(source, str):
            self.position = list(inspect.signature(host.forward).parameters).index(source)

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Note the mask of this call."""
        if not isinstance(self.source, str):
            self.slot.value = self.source(args, kwargs)
            return
        if self.source in kwargs:
            value = kwargs[self.source]
        else:
            value = args[self.position] if len(args) > self.position else None
        if value is None or self.outermost or _is_mask(value):
            self.slot.value = value


def _is_mask(value: Any) -> bool:
    kinds = (torch.bool, torch.int64, torch.int32)
    return isinstance(value, Tensor) and value.dim() in (2, 3) and value.dtype in kinds


def find_mask_hosts(
    model: nn.Module, layer: nn.Module, source: MaskSource
) -> list[tuple[nn.Module, Any]]:
    """The modules whose calls bring the layer's mask, from the outside in, and under which name.

    None looks for an argument `attention_mask` from the model down to the layer, the Hugging Face
    convention; a name must be an argument of the model or of a module around the layer.

    Raises:
        ValueError: nothing around the layer takes an argument of that name, or by its name it is
            true on padding.
    """
    if source is False:
        return []
    if callable(source):
        return [(model, source)]
    name = "attention_mask" if source is None else source
    if name.endswith("key_padding_mask"):
        raise ValueError(
            f"mask={source!r} is true on padding by PyTorch's convention, and masks here are true "
            f"on real tokens; pass mask=lambda args, kwargs: ~kwargs[{source!r}]"
        )
    around = [m for m in model.modules() if any(part is layer for part in m.modules())]
    hosts = [(m, name) for m in around if name in inspect.signature(m.forward).parameters]
    if not hosts and source is not None:
        taken = [p for p in inspect.signature(model.forward).parameters if p != "self"]
        raise ValueError(
            f"mask={source!r} is no argument of the model's forward, which takes: "
            f"{', '.join(taken)}; nor of a module around the layer"
        )
    return hosts
