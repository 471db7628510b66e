"""How a hook reads its layer: which tensor of the output, which axes, which padding mask."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from atomsep.core.layout import Axes, Layout
from atomsep.hooks.inputs import ModelInput
from atomsep.hooks.layouts import LayoutFinder
from atomsep.hooks.mask_fit import MaskFit, fits, unpack
from atomsep.hooks.mask_hosts import MaskSource, find_mask_hosts, modules_around
from atomsep.hooks.masks import MaskSlot, MaskTap
from atomsep.hooks.switch import Switch
from atomsep.hooks.targets import Key, pick_tensor
from atomsep.hooks.watch import Watch


class LayerReader:
    """Reads a layer's output as tokens and their mask.

    The hooks that note the mask are registered at once; `remove` takes them off.

    Args:
        model: the model around the layer, whose call brings the mask.
        name: the layer's name, for messages.
        layer: the module whose output is read.
        layout: the axes of the output, or "auto" to decide them where they are certain.
        mask: where the padding mask comes from; see [`attach`][atomsep.attach].
        select: index, key or field name of the tensor, where the layer returns several values.
        skip_tokens: how many tokens in front to leave out, or "auto" for class tokens.
        switch: turns the hooks that note the mask on and off.

    Raises:
        ValueError: the layout is unknown, no module around the layer takes such a mask, or the
            layer is lazy and has no weights yet.
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
        _refuse_lazy(name, layer)
        self.model, self.name, self.layer, self.select = model, name, layer, select
        self.key: Key = None
        self.input = ModelInput(model, switch)
        self.layout = LayoutFinder(model, name, layer, layout, skip_tokens, self.input)
        self.slot = MaskSlot(switch)
        hosts = find_mask_hosts(model, layer, mask)
        self.hosts = [host.module for host in hosts]
        self.taps = [MaskTap(self.slot, h, h.module is model, h is hosts[0]) for h in hosts]
        self.fit = MaskFit(modules_around(model, layer))
        self.watch = Watch(name)
        self.handles = [tap.register(host) for tap, host in zip(self.taps, self.hosts, strict=True)]

    def listen(self, hook: Callable[..., Any]) -> None:
        """Register a forward hook on the layer; what the model was given is forgotten after it."""
        self.handles.append(self.layer.register_forward_hook(hook))
        for tap, host in zip(self.taps, self.hosts, strict=True):
            self.handles.append(tap.register_end(host))
        self.handles += self.input.listen(self.model)

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

    def mask(self, layout: Layout, latent: Tensor) -> Tensor | None:
        """The mask of the calls in progress as `(M, N)`, true on real tokens; None without one.

        Raises:
            ValueError: there is a mask, but none for the layer's tokens.
            TypeError: it is not a mask.
        """
        calls = self.slot.calls
        mask = None
        if calls is not None:
            try:
                mask = self.fit(calls, layout, latent)
            except (TypeError, ValueError) as error:
                message = f"layer {self.name!r}: {error}, or pass mask=False to ignore masks"
                raise type(error)(message) from None
        if mask is None and self.hosts and not torch.compiler.is_compiling():
            self._warn_of_lost_mask(layout, latent)
        return mask

    def unpack(self, nested: Tensor) -> tuple[Tensor, Tensor]:
        """A nested tensor with padding, `(M, L, C)`, and its mask, `(M, L)`."""
        calls = self.slot.calls
        return unpack(nested, () if calls is None else calls.masks)

    def _warn_of_lost_mask(self, layout: Layout, latent: Tensor) -> None:
        """Warn if there may be a mask that does not reach the layer."""
        calls = self.slot.calls
        if calls is None or not calls.complete:
            self.watch.tell(
                "mask",
                f"layer {self.name!r} runs outside a call of {type(self.hosts[0]).__name__}, whose "
                f"{self.taps[0].name} is therefore not seen, and padding would count as tokens. "
                f"Call model(...), not model.forward(...) or a part of the model; pass mask=False "
                f"if there is no padding",
            )
            return
        for mask in calls.masks:
            if not mask.derived and fits(mask, layout, latent):
                self.watch.tell(
                    "mask",
                    f"the {mask.argument} fits the tokens of layer {self.name!r}, but may be that "
                    f"of another input, and is not used; pass mask={mask.argument!r} to use it, or "
                    f"mask=False",
                )

    def remove(self) -> None:
        """Take all hooks off the model, and forget the mask."""
        for handle in self.handles:
            handle.remove()
        self.slot.clear()


def _refuse_lazy(name: str, layer: nn.Module) -> None:
    """Raise if the sizes of a layer are not known before its first forward."""
    for module in layer.modules():
        tensors = (*module.parameters(recurse=False), *module.buffers(recurse=False))
        if any(is_lazy(tensor) for tensor in tensors):
            raise ValueError(
                f"layer {name!r} has no weights yet: {type(module).__name__} makes them in its "
                f"first forward. Run the model once, on any batch, and attach after that"
            )
