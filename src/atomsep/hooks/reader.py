"""How a hook reads its layer: which tensor of the output, which axes, which padding mask."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor, nn

from atomsep.core.layout import DESCRIPTIONS, Axes, Layout
from atomsep.hooks.axes import feature_widths, infer_axes
from atomsep.hooks.masks import ATTENTION_MASK, MaskSlot, MaskSource, MaskTap, find_mask_hosts
from atomsep.hooks.nearest import nearest_with_tokens
from atomsep.hooks.switch import Switch
from atomsep.hooks.targets import Key, pick_tensor


class LayerReader:
    """Reads a layer's output as tokens and their mask.

    The hooks that note the mask are registered at once; `remove` takes them off.

    Args:
        model: the model around the layer, whose call brings the mask.
        name: the layer's name, for messages.
        layer: the module whose output is read.
        layout: the axes of the output, or "auto" to infer them where they are certain.
        mask: where the padding mask comes from; see [`attach`][atomsep.attach].
        select: index or key of the tensor, where the layer returns a tuple or a mapping.
        skip_tokens: how many tokens in front to leave out.
        switch: turns the hooks that note the mask on and off.

    Raises:
        ValueError: the layout is unknown, or no module around the layer takes such a mask.
    """

    def __init__(
        self,
        model: nn.Module,
        name: str,
        layer: nn.Module,
        layout: Axes | Literal["auto"] = "auto",
        mask: MaskSource = None,
        select: Key = None,
        skip_tokens: int = 0,
        switch: Switch | None = None,
    ) -> None:
        if layout != "auto" and layout not in DESCRIPTIONS:
            raise ValueError(
                f"layout must be 'auto' or one of {list(DESCRIPTIONS)}, not {layout!r}"
            )
        self.model, self.name, self.layer = model, name, layer
        self.select, self.skip = select, skip_tokens
        axes = None if layout == "auto" else layout
        self.axes = {dim: axes or infer_axes(layer, model, dim) for dim in (3, 4, 5)}
        self.widths = None if axes else feature_widths(layer)
        self.resolved: tuple[torch.Size, Layout] | None = None
        self.slot = MaskSlot(switch)
        self.hosts = find_mask_hosts(model, layer, mask)
        source = ATTENTION_MASK if mask is None else mask
        self.handles = [
            host.register_forward_pre_hook(
                MaskTap(self.slot, host, source, outermost=host is self.hosts[0]), with_kwargs=True
            )
            for host in self.hosts
        ]

    def listen(self, hook: Callable[..., Any]) -> None:
        """Register a forward hook on the layer."""
        self.handles.append(self.layer.register_forward_hook(hook))

    def pick(self, output: object) -> tuple[Key, Tensor]:
        """The latent inside the layer's output, and where it lies."""
        return pick_tensor(output, self.select, self.name)

    def layout(self, latent: Tensor) -> Layout:
        """The layout of a latent, resolved once per shape.

        Raises:
            ValueError: the shape fits no layout, or none is certain.
        """
        if torch.compiler.is_compiling():  # a graph must not depend on what changes between calls
            return self._resolve(latent)
        resolved = self.resolved  # another thread may replace it meanwhile
        if resolved is None or resolved[0] != latent.shape:
            self.resolved = resolved = latent.shape, self._resolve(latent)
        return resolved[1]

    def _resolve(self, latent: Tensor) -> Layout:
        shape, name = tuple(latent.shape), self.name
        if not 3 <= len(shape) <= 5:
            near = nearest_with_tokens(self.model, latent)
            hint = "" if near is None else f". The nearest one that ran before it is {near!r}"
            raise ValueError(
                f"layer {name!r} gives shape {shape}, which has no token axis. Attach to a layer "
                f"before pooling or flattening, whose output is one of "
                f"{', '.join(DESCRIPTIONS.values())}{hint}"
            )
        axes = self.axes[len(shape)]
        features = shape[1] if axes == "channels_first" else shape[-1]
        if axes is None or (self.widths is not None and features not in self.widths):
            options = "; ".join(f'layout="{key}" for {text}' for key, text in DESCRIPTIONS.items())
            raise ValueError(
                f"layer {name!r} ({type(self.layer).__name__}) gives shape {shape}. Which axis "
                f"holds the tokens is not certain; pass {options}"
            )
        if axes == "length_first" and len(shape) != 3:
            raise ValueError(f'layout="length_first" means (L, M, C), but {name!r} gives {shape}')
        layout = Layout(axes, self.skip)
        tokens = math.prod(layout.token_shape(latent)[1:])
        if self.skip >= tokens > 0:
            raise ValueError(
                f"skip_tokens={self.skip} leaves no tokens: layer {name!r} gives shape {shape}, "
                f"which has {tokens}"
            )
        return layout

    def mask(self, layout: Layout, latent: Tensor, *, training: bool = True) -> Tensor | None:
        """The mask of the current call as `(M, N)`, true on real tokens; None without one."""
        mask = self.slot.value
        if mask is None:
            return None
        if not training and mask.dim() == 2 and latent.dim() == 3:
            # Generating with a cache, the mask covers the earlier tokens too.
            mask = mask[:, -layout.token_shape(latent)[1] :]
        try:
            return layout.flatten_mask(mask, latent)
        except (TypeError, ValueError) as error:
            message = f"layer {self.name!r}: {error}; pass mask=False to ignore masks"
            raise type(error)(message) from None

    def remove(self) -> None:
        """Take all hooks off the model, and forget the mask."""
        for handle in self.handles:
            handle.remove()
        self.slot.clear()
