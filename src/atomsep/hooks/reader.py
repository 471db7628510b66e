"""How a hook reads its layer: which tensor of the output, which axes, which padding mask."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from atomsep.core.layout import DESCRIPTIONS, Axes, Layout
from atomsep.hooks.axes import feature_widths, infer_axes, resolve_layout
from atomsep.hooks.masks import MaskSlot, MaskSource, MaskTap, find_mask_hosts
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
        *,
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
        self.name, self.kind = name, type(layer).__name__
        self.select, self.skip = select, skip_tokens
        axes = None if layout == "auto" else layout
        self.axes = {dim: axes or infer_axes(layer, model, dim) for dim in (3, 4, 5)}
        self.widths = None if axes else feature_widths(layer)
        self.resolved: tuple[torch.Size, Layout] | None = None
        self.slot = MaskSlot(switch)
        hosts = find_mask_hosts(model, layer, mask)
        self.hosts = [host for host, _ in hosts]
        self.handles = [
            host.register_forward_pre_hook(
                MaskTap(self.slot, host, source, outermost=host is hosts[0][0]), with_kwargs=True
            )
            for host, source in hosts
        ]

    def pick(self, output: object) -> tuple[Key, Tensor]:
        """The latent inside the layer's output, and where it lies."""
        return pick_tensor(output, self.select, self.name)

    def layout(self, latent: Tensor) -> Layout:
        """The layout of a latent, resolved once per shape."""
        if torch.compiler.is_compiling():  # a graph must not depend on what changes between calls
            return self._resolve(latent)
        resolved = self.resolved  # another thread may replace it meanwhile
        if resolved is None or resolved[0] != latent.shape:
            self.resolved = resolved = latent.shape, self._resolve(latent)
        return resolved[1]

    def _resolve(self, latent: Tensor) -> Layout:
        return resolve_layout(self.axes, self.skip, self.name, self.kind, latent, self.widths)

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
        """Take the mask's hooks off the model."""
        for handle in self.handles:
            handle.remove()
        self.slot.clear()
