"""Bring a model's own padding mask to the layer, without wiring by the user.

Hooks around the layer note the masks that are passed down to it, and forget each one when the call
that brought it ends. So a call that bypasses the hooks (`model.forward(...)`) never gets the mask
of an earlier one. Which of the masks is that of the layer's tokens: see `atomsep.hooks.mask_fit`.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from atomsep.hooks.mask_hosts import Host, parameters_of
from atomsep.hooks.switch import Hook, Switch


class Mask(NamedTuple):
    """A mask that a call around the layer brought.

    Attributes:
        value: the tensor.
        argument: the name under which it was passed.
        derived: whether the model turned another mask into it, for its attention (four axes,
            numbers to add).
        sure: whether it belongs to the layer's tokens.
        cached: whether it came with a cache, whose tokens it covers as well.
    """

    value: Tensor
    argument: str
    derived: bool = False
    sure: bool = True
    cached: bool = False


class Calls(NamedTuple):
    """What the calls in progress around the layer brought.

    Attributes:
        masks: innermost first.
        complete: whether a call was among them that shows all masks there are.
        own: whether the model itself was called.
        compiled: whether a compiled graph noted it.
    """

    masks: tuple[Mask, ...]
    complete: bool
    own: bool
    compiled: bool


class _Own(threading.local):
    def __init__(self) -> None:
        self.calls: Calls | None = None
        self.entered: list[tuple[MaskTap, Calls | None]] = []


class MaskSlot:
    """The masks of the calls in progress, from the hooks that note them to the layer's hook.

    Each thread has its own. A compiled graph cannot tell threads apart and uses a shared one.

    Args:
        switch: turns the hooks that note masks on and off.
    """

    def __init__(self, switch: Switch | None = None) -> None:
        self.switch = switch or Switch()
        self.clear()

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies and pickles start without a mask."""
        return MaskSlot, (self.switch,)

    def clear(self) -> None:
        """Forget all masks, in all threads."""
        self.shared: Calls | None = None
        self._own = _Own()

    @property
    def calls(self) -> Calls | None:
        """The calls in progress; None if no module that brings masks was called."""
        if torch.compiler.is_compiling():
            return self.shared
        shared = self.shared
        return shared if shared is not None and shared.compiled else self._own.calls

    def enter(self, tap: MaskTap, calls: Calls) -> None:
        """Note the masks at the beginning of a call."""
        tap.before = None if tap.outermost else self.shared
        tap.inside = True
        self.shared = calls
        if not calls.compiled:
            own = self._own
            if tap.outermost:
                own.entered.clear()  # of a call that was interrupted
            own.entered.append((tap, None if tap.outermost else own.calls))
            own.calls = calls

    def leave(self, tap: MaskTap) -> None:
        """Go back to what was before the call."""
        if tap.inside:
            self.shared, tap.before, tap.inside = tap.before, None, False
        if torch.compiler.is_compiling():
            return
        own = self._own
        if own.entered and own.entered[-1][0] is tap:
            own.calls = own.entered.pop()[1]


class MaskTap(Hook):
    """A forward pre-hook that notes the mask a module is called with.

    Modules around a layer pass the mask on, so of several masks the innermost comes first. A
    module that gets none leaves those around it: models drop a mask that hides nothing, or put it
    into another argument.

    Args:
        slot: where to note it.
        host: the module whose call brings the mask, and its argument.
        own: whether the module is the model itself, so that the mask is the user's own.
        outermost: whether no other hook comes before this one.
    """

    marks = True

    def __init__(self, slot: MaskSlot, host: Host, own: bool, outermost: bool) -> None:
        self.slot, self.source, self.own, self.outermost = slot, host.source, own, outermost
        self.sure, self.complete = host.sure, host.complete
        self.name = host.source if isinstance(host.source, str) else "mask"
        self.before: Calls | None = None
        self.inside = False
        self.places = {name: place for place, name in enumerate(parameters_of(host.module))}
        self.wraps = isinstance(host.source, str) and host.source not in self.places
        self.keys = _keys_of_attention(host.module, self.places)
        self.caches = [n for n in self.places if n.startswith(("past", "cache"))]

    def __getstate__(self) -> dict[str, Any]:
        """Copies start outside of any call."""
        return {**self.__dict__, "before": None, "inside": False}

    def register(self, module: nn.Module) -> RemovableHandle:
        """Note the masks of the module's calls."""
        return module.register_forward_pre_hook(self, with_kwargs=True)

    def register_end(self, module: nn.Module) -> RemovableHandle:
        """Forget them when a call ends, also by an error."""
        return module.register_forward_hook(MaskEnd(self), always_call=True)

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Note the mask of this call."""
        slot = self.slot
        if not slot.switch.on():
            return
        refuse_replica(module)
        outer = None if self.outermost else slot.calls
        masks = self._masks(args, kwargs, () if outer is None else outer.masks)
        compiled = torch.compiler.is_compiling()
        if outer is None:
            slot.enter(self, Calls(masks, self.complete, self.own, compiled))
            return
        complete = self.complete or outer.complete
        # Where nothing changes there is nothing to note; a graph cannot compare tuples.
        if compiled or masks is not outer.masks or complete is not outer.complete:
            slot.enter(self, Calls(masks, complete, self.own or outer.own, compiled))

    def _masks(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], around: tuple[Mask, ...]
    ) -> tuple[Mask, ...]:
        """The masks inside this call."""
        if not isinstance(self.source, str):
            value = self.source(args, kwargs)
            return () if value is None else (Mask(value, "mask"),)
        if self.keys is not None and self._attends_elsewhere(*self.keys, args, kwargs):
            return around
        value = self._get(self.source, args, kwargs)
        if value is None:
            if self.wraps or all(mask.sure for mask in around):
                return around
            return tuple([mask for mask in around if mask.sure])
        if not isinstance(value, Tensor) and not (self.own or self.wraps):
            return around  # for attentions of several kinds
        known = any(mask.value is value for mask in around)
        derived = not (self.own or self.wraps or _is_mask(value, alone=len(around) == 0))
        cached = any(self._get(name, args, kwargs) is not None for name in self.caches)
        confirms = derived or (known and self.sure)  # what is around belongs here as well
        if cached or (confirms and not all(mask.sure for mask in around)):
            around = tuple(
                [
                    Mask(m.value, m.argument, m.derived, m.sure or confirms, m.cached or cached)
                    for m in around
                ]
            )
        if known:
            return around
        return (Mask(value, self.source, derived, self.sure or derived, cached), *around)

    def _get(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """An argument of the call; for a wrapper, also inside a mapping."""
        if name in kwargs:
            return kwargs[name]
        if not self.wraps:
            return args[self.places[name]] if len(args) > self.places[name] else None
        given = (*args, *kwargs.values())
        return next((g[name] for g in given if isinstance(g, Mapping) and name in g), None)

    def _attends_elsewhere(
        self, own: str, others: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> bool:
        """Whether the mask is that of other tokens, which the module's own attend to."""
        keys = self._get(others, args, kwargs)
        return keys is not None and keys is not self._get(own, args, kwargs)


class MaskEnd(Hook):
    """A forward hook that forgets the mask of a call when it ends."""

    def __init__(self, tap: MaskTap) -> None:
        self.tap = tap

    def __call__(self, module: nn.Module, args: Any, output: Any) -> None:
        """Forget it."""
        self.tap.slot.leave(self.tap)


def _keys_of_attention(module: nn.Module, places: Mapping[str, int]) -> tuple[str, str] | None:
    """The arguments of an attention for its own tokens and for those that it attends to."""
    if isinstance(module, nn.MultiheadAttention):
        return "query", "key"
    kind = type(module).__name__.lower()
    if not ("attention" in kind or "attn" in kind) or "encoder_attention_mask" in places:
        return None
    keys = [name for name in ("key_value_states", "encoder_hidden_states") if name in places]
    return (next(iter(places)), keys[0]) if keys else None


def _is_mask(value: Tensor, alone: bool) -> bool:
    """Whether a mask is one of tokens, not what a model made of it for its attention."""
    if value.dim() not in (2, 3):
        return False
    return not value.is_floating_point() or (alone and value.dim() == 2)


def refuse_replica(module: nn.Module) -> None:
    """Raise if a module is a replica made by nn.DataParallel."""
    if getattr(module, "_is_replica", False):
        raise RuntimeError(
            "an attached model runs as a replica of nn.DataParallel, where the latents of other "
            "devices are out of reach; use torch.nn.parallel.DistributedDataParallel"
        )
