"""Attach atom modeling to layers of a model.

Hooks read what the layers return (`atomsep.hooks.tap`). The attachment turns that into the loss,
the importance and the statistics on demand.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from types import MethodType
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from atomsep.core.layout import Axes
from atomsep.core.loss import AtomLoss
from atomsep.hooks.mask_hosts import MaskSource
from atomsep.hooks.masks import MaskTap
from atomsep.hooks.reader import LayerReader
from atomsep.hooks.switch import Switch
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
    skip_tokens: int | Literal["auto"] = "auto",
    watch_gradients: bool = False,
) -> Attachment:
    """Attach atom modeling to one or several layers of a model.

    The model's code, parameters and state_dict stay as they are. Train as before and add
    `attachment.loss()` to the task's loss.

    Args:
        model: any module, also one that is compiled or wrapped in DistributedDataParallel. Its
            training mode decides whether there is a loss.
        target: a dotted name, a glob over dotted names, a module of the model, or a list of these.
        loss: the loss with its settings and learned maps; `AtomLoss()` if None. Learned maps are
            not part of the model: pass their `parameters()` to the optimiser, and average their
            gradients yourself in data-parallel training.
        weight: factor of the loss; can be changed during training.
        layout: "channels_first" for (M, C, H, W) and (M, C, L), "channels_last" for (M, L, C) and
            (M, H, W, C), "length_first" for (L, M, C), or "auto" to decide it in the first forward;
            `print(attachment)` then shows what was decided, and why.
        mask: None uses the `attention_mask` or `key_padding_mask` of the calls around the layer, a
            name uses the argument of that name, a callable `(args, kwargs) -> mask` computes the
            mask from the model's arguments, and False uses no mask. Masks have shape `(M, L)` or
            `(M, H, W)` and are true on real tokens; a `key_padding_mask` is true on padding.
        select: index or key of the tensor if the layer returns a tuple or a mapping.
        skip_tokens: number of tokens in front to leave out, or "auto" for the class, distillation
            and register tokens of a vision transformer.
        watch_gradients: whether `stats` shows how strong the loss's gradient is against the
            task's; can be changed at any step. It costs a copy of the gradient.

    Returns:
        The attachment, with the loss, importance and statistics of the layer.

    Raises:
        ValueError: the target matches nothing, or an argument is out of range. A layout that is
            not certain is refused in the first forward, in a message that names the shapes.

    Example:
        >>> model = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Flatten(), nn.Linear(40, 2))
        >>> attachment = attach(model, "0", weight=0.1)
        >>> logits = model(torch.randn(4, 5, 3))
        >>> (logits.logsumexp(1).mean() + attachment.loss()).backward()
        >>> attachment.importance.shape
        torch.Size([4, 5])
        >>> attachment.detach()
    """
    attachment = Attachment(model, loss if loss is not None else AtomLoss(), weight)
    attachment.watch_gradients = watch_gradients
    try:
        for name, layer in find_layers(model, target).items():
            reader = LayerReader(
                attachment.model, name, layer, layout, mask, select, skip_tokens, attachment._switch
            )
            attachment._add(reader)
    except BaseException:
        attachment.detach()
        raise
    return attachment


def attachments(model: nn.Module) -> list[Attachment]:
    """The attachments of a model, for example of a copied or unpickled one.

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
    """Atom modeling on one or several layers of a model; created by `attach`.

    A context manager, which detaches when it exits. Loss, importance and statistics belong to the
    thread that ran the model. (A compiled model can be used by one thread at a time.)

    Attributes:
        criterion (AtomLoss): the loss with its settings and learned maps.
        model (nn.Module): the model it is attached to.
        watch_gradients (bool): whether the next forwards are watched for `stats`.
    """

    def __init__(self, model: nn.Module, criterion: AtomLoss, weight: float) -> None:
        self.model = _unwrapped(model)
        self.criterion = criterion
        self.weight = weight
        self.watch_gradients = False
        self._switch = Switch()
        self._taps: list[LayerTap] = []

    @property
    def active(self) -> bool:
        """False once detached."""
        return self._switch.attached

    @property
    def weight(self) -> float:
        """Factor of the loss, at least 0; can be changed at any step."""
        return self._weight

    @weight.setter
    def weight(self, value: float) -> None:
        if not (math.isfinite(value) and value >= 0):
            raise ValueError(f"weight must be a finite number of at least 0, not {value!r}")
        self._weight = float(value)

    @property
    def layers(self) -> list[str]:
        """Names of the layers it is attached to."""
        return [tap.name for tap in self._taps]

    def loss(self) -> Tensor:
        """The weighted loss of the last training forward, to be added to the task's loss.

        With several layers, it is the mean of their losses, on the device of the last one. If a
        layer ran more than once since the last call, its last run counts.

        Raises:
            RuntimeError: there was no training forward since the last call, the attachment was
                detached, or the output was overwritten in place for the first time after earlier
                steps left it unchanged.
        """
        for tap in self._taps:
            tap.check_loss()  # before any is taken
        return mean_of([tap.take_loss(self.weight) for tap in self._taps])

    @property
    def importance(self) -> Any:
        """Token importance of the last forward, in training or not.

        `(M, H, W)` for maps and `(M, L)` for sequences, float32, 0 on padding. With several
        layers, a dictionary by name.
        """
        return self._each(LayerTap.importance)

    @property
    def stats(self) -> dict[str, Any]:
        """The parts of the loss of the last training forward, as numbers.

        energy, neutrality and occupancy are unweighted and in the loss's scale. distance is the
        mean over pairs of nuclei and radius the mean over samples. protons, electrons and neutrons
        are the shares P/N, G/N and the rest. They are computed when read, which synchronises with
        the GPU. With several layers, a dictionary by name.

        With `watch_gradients`, and once the backward pass has run, gradient_share is the norm of
        the weighted loss's gradient at the layer's output over that of the gradient that arrives
        there from the rest of the model. gradient_share_charge and gradient_share_positions are
        the same in the charge's feature and in all others, unless learned maps read them. Compiled
        models do not show them.
        """
        numbers: dict[str, Any] = self._each(LayerTap.stats)
        return numbers

    def _each(self, read: Any) -> Any:
        if len(self._taps) == 1:
            return read(self._taps[0])
        return {tap.name: read(tap) for tap in self._taps}

    def parameters(self) -> Iterator[nn.Parameter]:
        """Parameters of the learned maps, for the optimiser; none with the default maps."""
        return self.criterion.parameters()

    def state_dict(self) -> dict[str, Any]:
        """State of the learned maps."""
        return self.criterion.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load the state of the learned maps."""
        self.criterion.load_state_dict(state)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """A context in which the hooks do nothing and the model runs as if it were not attached.

        For what cannot run with hooks. It applies to all threads and can be nested; what was held
        before stays. torch.export needs it only in PyTorch 2.6 with strict=True.

        Example:
            >>> model = nn.Sequential(nn.Linear(3, 8), nn.ReLU())
            >>> attachment = attach(model, "0")
            >>> with attachment.paused():
            ...     program = torch.export.export(model, (torch.randn(4, 5, 3),))
        """
        self._switch.pauses.append(None)
        try:
            yield
        finally:
            self._switch.pauses.pop()

    def detach(self) -> None:
        """Remove all hooks from the model and drop what is held of the last forward."""
        self._switch.attached = False
        for tap in self._taps:
            tap.detach()
        for tap in self._taps:
            for module in (*tap.reader.hosts, tap.reader.layer):
                _unmark(module)

    def __enter__(self) -> Attachment:
        return self

    def __exit__(self, *exc: object) -> None:
        self.detach()

    def __repr__(self) -> str:
        state = "" if self.active else ", detached"
        lines = [
            f"Attachment(layers={self.layers}, weight={self.weight:g}{state}, {self.criterion})"
        ]
        for tap in self._taps:
            lines.append(f"  {tap.name}: {tap.reader.describe(tap.forwards.last.read_as)}")
        return "\n".join(lines)

    def _add(self, reader: LayerReader) -> None:
        """Register the hooks, and store each module's `forward` in the module itself.

        It is the one of its class, which would be found anyway. But torch.compile shares graphs
        between the models of a class and does not check whether they have hooks. It does check
        this, so no graph that was compiled without the hook fits.
        """
        tap = LayerTap(self, reader)
        self._taps.append(tap)
        reader.listen(tap)
        for module in (*reader.hosts, reader.layer):
            vars(module).setdefault("forward", module.forward)


def mean_of(losses: list[Tensor]) -> Tensor:
    """The mean of scalars, on the device of the last one."""
    if len(losses) == 1:
        return losses[0]
    device = losses[-1].device
    return torch.stack([loss.to(device) for loss in losses]).mean()


def _unmark(module: nn.Module) -> None:
    """Remove the `forward` that `_add` stored, once no attachment has a hook on the module."""
    hooks = (*module._forward_hooks.values(), *module._forward_pre_hooks.values())
    ours = any(isinstance(hook, (LayerTap, MaskTap)) for hook in hooks)
    own = MethodType(type(module).forward, module)
    if not ours and vars(module).get("forward") == own:
        del vars(module)["forward"]


def _unwrapped(model: Any) -> nn.Module:
    """The model inside compiled and data-parallel wrappers."""
    while isinstance(model, nn.parallel.DistributedDataParallel) or hasattr(model, "_orig_mod"):
        model = model._orig_mod if hasattr(model, "_orig_mod") else model.module
    return cast(nn.Module, model)
