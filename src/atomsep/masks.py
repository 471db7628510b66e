"""Bring a model's own padding mask to the layer, without the user wiring it."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Literal

from torch import Tensor, nn

MaskSource = (
    str | Callable[[tuple[Any, ...], dict[str, Any]], Tensor | None] | Literal[False] | None
)


class MaskTap:
    """A forward pre-hook that keeps the mask of the call under way.

    Args:
        host: the module whose call brings the mask.
        source: name of an argument of the host's forward, or a callable of `(args, kwargs)`.
    """

    def __init__(self, host: nn.Module, source: Any) -> None:
        self.source = source
        self.position = -1
        if isinstance(source, str):
            self.position = list(inspect.signature(host.forward).parameters).index(source)
        self.value: Tensor | None = None

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Note the mask of this call."""
        if not isinstance(self.source, str):
            self.value = self.source(args, kwargs)
        elif self.source in kwargs:
            self.value = kwargs[self.source]
        else:
            self.value = args[self.position] if len(args) > self.position else None

    def __getstate__(self) -> dict[str, Any]:
        """Copies start without a mask."""
        return {**self.__dict__, "value": None}


def find_mask(
    model: nn.Module, layer: nn.Module, source: MaskSource
) -> tuple[nn.Module, Any] | None:
    """Which module's call brings the layer's mask, and under which name.

    None looks for an argument `attention_mask` from the model down to the layer, the Hugging Face
    convention; a name must be an argument of the model or of a module around the layer.

    Raises:
        ValueError: nothing around the layer takes an argument of that name.
    """
    if source is False:
        return None
    if callable(source):
        return model, source
    name = "attention_mask" if source is None else source
    around = [m for m in model.modules() if any(part is layer for part in m.modules())]
    for module in around:
        if name in inspect.signature(module.forward).parameters:
            return module, name
    if source is None:
        return None
    taken = [p for p in inspect.signature(model.forward).parameters if p != "self"]
    raise ValueError(
        f"mask={source!r} is no argument of the model's forward, which takes: {', '.join(taken)}; "
        f"nor of a module around the layer"
    )
