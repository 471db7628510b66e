"""Attach atom modeling to a layer of any model.

Hooks on the layers read their outputs (`atomsep.hooks.tap`); an attachment makes of that the loss, the
importance and the statistics when it is asked for them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from atomsep.core.layout import DESCRIPTIONS, Axes
from atomsep.core.loss import AtomLoss
from atomsep.hooks.masks import MaskSlot, MaskSource, MaskTap, find_mask_hosts
from atomsep.hooks.tap import LayerTap
from atomsep.hooks.targets import Key, Target, find_layers


def attach(
    model: nn.Module,
    target: Target,
    loss: AtomLoss | None = None,
    *,
    weight: float = 0.1,
    layout: Axes | Literal["auto"] = "auto",
    mask: MaskSource = None,
    select: Key = None,
    skip_tokens: int = 0,
) -> Attachment:
    """Attach atom modeling to one or several layers of a model.

    The model's own code, parameters and state_dict stay as they are. Train as before and add
    `attachment.loss()` to the task's loss.

    Args:
        model: any module; wrapped in DistributedDataParallel or torch.compile too, as long as
            it was not called compiled before. Its training mode decides whether there is a loss.
        target: a dotted name, a glob over dotted names, a module of the model, or a list of these.
        loss: the loss, with its own settings and learned maps; `AtomLoss()` if None. Learned maps
            are not part of the model: give their `parameters()` to the optimiser, and average
            their gradients yourself in data-parallel training.
        weight: factor of the loss; can be changed while training.
        layout: "channels_first" for (M, C, H, W) and (M, C, L), "channels_last" for (M, L, C) and
            (M, H, W, C), "length_first" for (L, M, C), or "auto" to infer it where it is certain.
        mask: None takes an `attention_mask` that the model is called with; a name takes that
            argument, a callable `(args, kwargs) -> mask` of the model's call anything else, False
            nothing. Masks are true on real tokens, `(M, L)` or `(M, H, W)`.
        select: index or key of the tensor, where the layer returns a tuple or a mapping.
        skip_tokens: class tokens in front to leave out.

    Returns:
        The attachment, with the loss, importance and statistics of the layer.

    Raises:
        ValueError: the target matches nothing, or an argument is out of range. A layout that is
            not certain is refused in the first forward, with the shapes.

    Example:
        >>> model = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Flatten(), nn.Linear(40, 2))
        >>> attachment = attach(model, "0", weight=0.1)
        >>> logits = model(torch.randn(4, 5, 3))
        >>> (logits.logsumexp(1).mean() + attachment.loss()).backward()
        >>> attachment.importance.shape
        torch.Size([4, 5])
        >>> attachment.detach()
    """
    if skip_tokens < 0:
        raise ValueError(f"skip_tokens must be at least 0, not {skip_tokens}")
    if layout != "auto" and layout not in DESCRIPTIONS:
        raise ValueError(f"layout must be 'auto' or one of {list(DESCRIPTIONS)}, not {layout!r}")
    attachment = Attachment(model, loss if loss is not None else AtomLoss(), weight)
    try:
        for name, layer in find_layers(model, target).items():
            attachment._add(name, layer, layout, mask, select, skip_tokens)
    except BaseException:
        attachment.detach()
        raise
    return attachment


def attachments(model: nn.Module) -> list[Attachment]:
    """The attachments of a model: how a copied or unpickled model's are found again.

    Example:
        >>> import copy
        >>> model = nn.Sequential(nn.Linear(3, 8), nn.ReLU())
        >>> attachment = attach(model, "0")
        >>> [copied] = attachments(copy.deepcopy(model))
        >>> copied is attachment
        False
    """
    hooks = (hook for module in model.modules() for hook in module._forward_hooks.values())
    return list(dict.fromkeys(hook.attachment for hook in hooks if isinstance(hook, LayerTap)))


class Attachment:
    """Atom modeling on one or several layers of a model; made by `attach`.

    Usable as a context manager that detaches at its end.

    Attributes:
        criterion (AtomLoss): the loss, with its settings and learned maps.
        model (nn.Module): what it is attached to.
        active (bool): False once detached.
    """

    def __init__(self, model: nn.Module, criterion: AtomLoss, weight: float) -> None:
        self.model = _unwrapped(model)
        self.criterion = criterion
        self.weight = weight
        self.active = True
        self._taps: list[LayerTap] = []
        self._handles: list[torch.utils.hooks.RemovableHandle] = []

    @property
    def weight(self) -> float:
        """Factor of the loss, at least 0; may be set anew at any step."""
        return self._weight

    @weight.setter
    def weight(self, value: float) -> None:
        if not (math.isfinite(value) and value >= 0):
            raise ValueError(f"weight must be a finite number of at least 0, not {value!r}")
        self._weight = float(value)

    @property
    def layers(self) -> list[str]:
        """Names of the layers attached to."""
        return [tap.name for tap in self._taps]

    def loss(self) -> Tensor:
        """The weighted loss of the last training forward, ready to add to the task's.

        With several layers it is their mean. A layer that ran more than once since the last call
        counts with its last run.

        Raises:
            RuntimeError: no training forward since the last call, or the attachment was detached,
                or the output was overwritten in place for the first time after earlier steps
                left it alone.
        """
        for tap in self._taps:
            tap.check_loss()  # before any is taken
        losses = [tap.take_loss(self.weight) for tap in self._taps]
        return losses[0] if len(losses) == 1 else torch.stack(losses).mean()

    @property
    def importance(self) -> Any:
        """Token importance of the last forward, training or not, in the shape of the tokens.

        `(M, H, W)` for maps, `(M, L)` for sequences, float32, 0 on padding; with several layers a
        dictionary by name.
        """
        return self._each(LayerTap.importance)

    @property
    def stats(self) -> dict[str, Any]:
        """The parts of the loss of the last training forward, as numbers.

        energy, neutrality and occupancy are unweighted, in the loss's own scale; distance is the
        mean over pairs of nuclei, radius the mean over samples; protons, electrons and neutrons
        are the shares P/N, G/N and the rest. Computed when read, which waits for a GPU. With
        several layers a dictionary by name.
        """
        numbers: dict[str, Any] = self._each(LayerTap.stats)
        return numbers

    def _each(self, read: Any) -> Any:
        if len(self._taps) == 1:
            return read(self._taps[0])
        return {tap.name: read(tap) for tap in self._taps}

    def parameters(self) -> Iterator[nn.Parameter]:
        """Parameters of learned maps, for the optimiser; none with the default maps."""
        return self.criterion.parameters()

    def state_dict(self) -> dict[str, Any]:
        """State of learned maps."""
        return self.criterion.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load the state of learned maps."""
        self.criterion.load_state_dict(state)

    def detach(self) -> None:
        """Take every hook off the model and drop what is held of the last forward."""
        self.active = False
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        for tap in self._taps:
            tap.forget()

    def __enter__(self) -> Attachment:
        return self

    def __exit__(self, *exc: object) -> None:
        self.detach()

    def __repr__(self) -> str:
        state = "" if self.active else ", detached"
        return f"Attachment(layers={self.layers}, weight={self.weight:g}{state}, {self.criterion})"

    def _add(
        self,
        name: str,
        layer: nn.Module,
        layout: Axes | Literal["auto"],
        mask: MaskSource,
        select: Key,
        skip: int,
    ) -> None:
        slot = MaskSlot()
        hosts = find_mask_hosts(self.model, layer, mask)
        for host, source in hosts:
            hook = MaskTap(slot, host, source, outermost=host is hosts[0][0])
            self._handles.append(host.register_forward_pre_hook(hook, with_kwargs=True))
        tap = LayerTap(self, name, layer, layout, slot, select, skip)
        self._taps.append(tap)
        self._handles.append(layer.register_forward_hook(tap))


def _unwrapped(model: Any) -> nn.Module:
    """The model inside compiled and data-parallel wrappers, whose modules are the same."""
    while True:
        if isinstance(model, nn.parallel.DistributedDataParallel):
            model = model.module
        elif hasattr(model, "_orig_mod"):
            model = model._orig_mod
        else:
            return cast(nn.Module, model)
