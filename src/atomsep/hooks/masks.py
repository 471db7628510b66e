"""Bring a model's own padding mask to the layer, without wiring by the user."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor, nn

from atomsep.hooks.switch import Hook, Switch

MaskSource = (
    str | Callable[[tuple[Any, ...], dict[str, Any]], Tensor | None] | Literal[False] | None
)


ATTENTION_MASK = "attention_mask"
"""The argument that holds the mask, by the Hugging Face convention."""


class _Own(threading.local):
    value: Tensor | None = None


class MaskSlot:
    """The mask of the call in progress, from the hooks that note it to the layer's hook.

    Each thread has its own. A compiled graph cannot tell threads apart and uses a shared one.

    Args:
        switch: turns the hooks that note it on and off.
    """

    def __init__(self, switch: Switch | None = None) -> None:
        self.switch = switch or Switch()
        self.clear()

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies and pickles start without a mask."""
        return MaskSlot, (self.switch,)

    def clear(self) -> None:
        """Forget the mask, in all threads."""
        self.shared: Tensor | None = None
        self.noted_compiled = False
        self._own = _Own()

    def note(self, value: Tensor | None) -> None:
        """Keep the mask of this call."""
        self.shared, self.noted_compiled = value, torch.compiler.is_compiling()
        if not self.noted_compiled:
            self._own.value = value

    @property
    def value(self) -> Tensor | None:
        """The mask noted last."""
        if self.noted_compiled or torch.compiler.is_compiling():
            return self.shared
        return self._own.value


class MaskTap(Hook):
    """A forward pre-hook that notes the mask a module is called with.

    Modules around a layer pass the mask on, so of several calls the innermost counts. What a model
    turns its mask into on the way (four axes, numbers to add) is not a mask of tokens and is
    ignored.

    Args:
        slot: where to note it.
        host: the module whose call brings the mask.
        source: name of an argument of the host's forward, or a callable of `(args, kwargs)`.
        outermost: whether the mask is the user's own, which is refused if it does not fit.
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
        if not self.slot.switch.on():
            return
        refuse_replica(module)
        if not isinstance(self.source, str):
            self.slot.note(self.source(args, kwargs))
            return
        value = kwargs.get(self.source, args[self.position] if len(args) > self.position else None)
        if value is None or self.outermost or _is_mask(value):
            self.slot.note(value)


def refuse_replica(module: nn.Module) -> None:
    """Raise if a module is a replica made by nn.DataParallel."""
    if getattr(module, "_is_replica", False):
        raise RuntimeError(
            "an attached model runs as a replica of nn.DataParallel, where the latents of other "
            "devices are out of reach; use torch.nn.parallel.DistributedDataParallel"
        )


def _is_mask(value: Any) -> bool:
    kinds = (torch.bool, torch.int64, torch.int32)
    return isinstance(value, Tensor) and value.dim() in (2, 3) and value.dtype in kinds


def find_mask_hosts(model: nn.Module, layer: nn.Module, source: MaskSource) -> list[nn.Module]:
    """The modules whose calls bring the layer's mask, outermost first.

    None looks for an argument named `attention_mask`, the Hugging Face convention, from the model
    down to the layer. A name must be an argument of the model or of a module around the layer.

    Raises:
        ValueError: nothing around the layer takes an argument of that name, or the name is that of
            a mask that is true on padding.
    """
    if source is False:
        return []
    if callable(source):
        return [model]
    name = ATTENTION_MASK if source is None else source
    if name.endswith("key_padding_mask"):
        raise ValueError(
            f"mask={source!r} is true on padding by PyTorch's convention, but masks here are true "
            f"on real tokens; pass mask=lambda args, kwargs: ~kwargs[{source!r}]"
        )
    around = [m for m in model.modules() if any(part is layer for part in m.modules())]
    hosts = [m for m in around if name in inspect.signature(m.forward).parameters]
    if not hosts and source is not None:
        taken = [p for p in inspect.signature(model.forward).parameters if p != "self"]
        raise ValueError(
            f"mask={source!r} is not an argument of the model's forward, which takes "
            f"{', '.join(taken)}, or of a module around the layer"
        )
    return hosts
