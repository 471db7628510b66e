"""A method on a layer of a model: from the forward pass to the method's loss."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from atomsep.checks import in_backward
from atomsep.core.layout import Layout
from atomsep.hooks.reader import LayerReader
from atomsep.hooks.strength import Strength
from atomsep.hooks.targets import put_tensor

if TYPE_CHECKING:
    from atomsep.methods.base import Method


class Binding(ABC):
    """A method on a layer of a model; made by [`Method.bind`][atomsep.methods.Method.bind].

    Train as before, and add `loss` to the task's loss after each forward pass.

    Attributes:
        watch_gradients: whether the next forwards are watched for `gradient_shares`.
        strength: what the last step left on the device for `gradient_shares` and `stats`.
        total: adds up over processes; with it, `gradient_shares` are those of all samples, and
            every process must read them.
    """

    watch_gradients: bool = False
    strength: Any = None
    total: Callable[[Tensor], Tensor] | None = None

    @abstractmethod
    def loss(self, labels: Tensor | None = None, again: Callable[[], Any] | None = None) -> Tensor:
        """The weighted loss of the model's last training forward.

        Args:
            labels: the classes of the samples, `(M,)`, for methods that need them.
            again: runs the model on the second view, for methods that need one.

        Raises:
            RuntimeError: the model has not run in training mode since the last call.
            ValueError: the method needs labels or a second view and got none.
        """

    @property
    def importance(self) -> Any:
        """Token importance of the last forward; None for methods that do not measure it."""
        return None

    @property
    def gradient_shares(self) -> dict[str, float]:
        """How strong the loss's gradient was in the last backward pass; empty if not watched.

        See `stats` of [`Attachment`][atomsep.Attachment].
        """
        return {}

    @property
    def stats(self) -> dict[str, float]:
        """Statistics of the last training forward; empty for methods that have none.

        See `stats` of [`Attachment`][atomsep.Attachment].
        """
        return {}

    @abstractmethod
    def detach(self) -> None:
        """Remove every hook from the model."""


class LatentBinding(Binding):
    """A hook on one layer that keeps the tokens of the last training forward, and their mask.

    The rest of the model gets a copy of the output, so that writing to it in place does not change
    the tokens; or what the method makes of them (see
    [`Method.pass_on`][atomsep.methods.Method.pass_on]).
    """

    def __init__(self, method: Method, reader: LayerReader, weight: float) -> None:
        self.method, self.reader, self.weight = method, reader, weight
        self.held: tuple[Tensor, Tensor | None] | None = None
        reader.listen(self._hook)

    def _hook(self, module: nn.Module, args: Any, output: Any) -> Any:
        key, latent = self.reader.pick(output)
        layout = self.reader.layout(latent, args)
        training = self.reader.model.training and torch.is_grad_enabled()
        strength, for_loss, rest = None, latent, latent
        if training and not torch.compiler.is_compiling() and self.watch_gradients:
            strength = Strength(layout, None)
            for_loss, rest = strength.split(latent, copy=False)
        if training and not in_backward():  # a checkpoint's recomputation has no loss of its own
            self.strength = strength
            self.held = layout.tokens(for_loss), self.reader.mask(layout, latent)
        tokens = layout.tokens(rest)
        passed = self.method.pass_on(tokens)
        passed = rest.clone() if passed is tokens else _as_output(passed, layout, latent)
        return put_tensor(output, key, passed)

    @property
    def gradient_shares(self) -> dict[str, float]:
        """The share of the whole gradient; of two views, at the first."""
        strength: Strength | None = self.strength
        return {} if strength is None else strength.shares(self.total)

    def loss(self, labels: Tensor | None = None, again: Callable[[], Any] | None = None) -> Tensor:
        """The method's loss on the tokens, times the weight."""
        view = self.method.second_view
        if view is not None and again is None:
            raise ValueError(
                f"{type(self.method).__name__} compares two views of each sample: pass again=, a "
                f"function that runs the model on the second one, made by {view}"
            )
        latent, mask = self._take()
        second = None
        if view is not None and again is not None:
            first = self.strength  # the task's gradient arrives at the first view
            again()
            self.strength = first
            second, _ = self._take()
        loss: Tensor = self.weight * self.method(latent, labels, mask, second)
        return loss

    def _take(self) -> tuple[Tensor, Tensor | None]:
        """Tokens `(M, N, h)` and mask `(M, N)` of the last training forward; once."""
        if self.held is None:
            raise RuntimeError(
                f"layer {self.reader.name!r} has not run in training mode since the last loss; "
                f"run the model first, with gradients enabled"
            )
        held, self.held = self.held, None
        return held

    def detach(self) -> None:
        """Remove every hook from the model, and drop what is held of the last forward."""
        self.reader.remove()
        self.held = None


def _as_output(tokens: Tensor, layout: Layout, like: Tensor) -> Tensor:
    """Tokens `(M, N, h)` in the axes of the layer's output."""
    if layout.axes == "channels_first":
        return tokens.transpose(1, 2).reshape(like.shape)
    return (tokens.transpose(0, 1) if layout.axes == "length_first" else tokens).reshape(like.shape)
