"""How a hook reads its layer: which tensor of the output, which axes, which padding mask."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor, nn

from atomsep.core.layout import Axes, Layout
from atomsep.hooks.inputs import ModelInput
from atomsep.hooks.layouts import LayoutFinder
from atomsep.hooks.masks import ATTENTION_MASK, MaskSlot, MaskSource, MaskTap, find_mask_hosts
from atomsep.hooks.switch import Switch
from atomsep.hooks.targets import Key, pick_tensor


class LayerReader:
    """Reads a layer's output as tokens and their mask.

    The hooks that note the mask are registered at once; `remove` takes them off.

    Args:
        model: the model around the layer, whose call brings the mask.
        name: the layer's name, for messages.
        layer: the module whose output is read.
        layout: the axes of the output, or "auto" to decide them where they are certain.
        mask: where the padding mask comes from; see [`attach`][atomsep.attach].
        select: index or key of the tensor, where the layer returns a tuple or a mapping.
        skip_tokens: how many tokens in front to leave out, or "auto" for class tokens.
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
        skip_tokens: int | Literal["auto"] = 0,
        switch: Switch | None = None,
    ) -> None:
        self.model, self.name, self.layer, self.select = model, name, layer, select
        self.key: Key = None
        self.input = ModelInput(model, switch)
        self.layout = LayoutFinder(model, name, layer, layout, skip_tokens, self.input)
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
        """Register a forward hook on the layer, and those that note what the model is given."""
        self.handles.append(self.layer.register_forward_hook(hook))
        self.handles += self.input.listen(self.model)  # forgotten after the layer's hook has run

    def pick(self, output: object) -> tuple[Key, Tensor]:
        """The latent inside the layer's output, and where it lies."""
        key, latent = pick_tensor(output, self.select, self.name)
        if not torch.compiler.is_compiling():
            self.key = key
        return key, latent

    def describe(self, read_as: tuple[Layout, tuple[int, ...]] | None = None) -> str:
        """Which tensor is read, and in which layout; see `LayoutFinder.describe`."""
        entry = "" if self.key is None else f"output[{self.key!r}], "
        return entry + self.layout.describe(read_as)

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
