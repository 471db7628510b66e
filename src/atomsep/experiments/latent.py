"""A method on a layer of an experiment's model, by the method's name."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from atomsep.experiments.errors import ExperimentError, layer_errors
from atomsep.experiments.settings import Settings
from atomsep.experiments.task import Context
from atomsep.hooks.axes import feature_widths
from atomsep.hooks.targets import find_layers
from atomsep.hooks.watch import AtomWarning
from atomsep.methods import METHODS, Binding, Method, make_method


def bind(
    name: str, model: nn.Module, settings: Settings, seed: int, features: int = 0
) -> tuple[Method, Binding]:
    """A method by its name, on the layer that the settings name; "plain" is not one.

    Args:
        name: name of the method.
        model: the model.
        settings: name the layer, the weight and the method's options.
        seed: seed of the run.
        features: the layer's number of features, where the layer itself does not tell.

    Raises:
        ExperimentError: the layer, the method or an option does not exist, or a value does not fit.
    """
    layer, weight = settings.layer, settings.weight
    layout: Any = settings.layout
    try:
        with layer_errors():
            on_layer = name not in METHODS or METHODS[name].on_layer  # make_method refuses others
            layers = find_layers(model, layer).values() if on_layer else ()
            widths = {width for each in layers for width in feature_widths(each)}
            width = widths.pop() if len(widths) == 1 else max(features, 1)
            method = make_method(name, features=width, seed=seed, **settings.method)
            assert method is not None  # only "plain" has none
            return method, method.bind(model, layer, weight=weight or 0.0, layout=layout)
    except (ValueError, TypeError) as error:
        raise ExperimentError(str(error)) from error


def read_importance(binding: Binding | None) -> Any:
    """The importance of the last forward; None if the method or the layer has none.

    A layer may have a loss but no importance: where it does not run in eval mode, or returns a
    nested tensor there. A warning then says why, and does not end a run.
    """
    try:
        return None if binding is None else binding.importance
    except RuntimeError as error:
        warnings.warn(f"there is no importance to show: {error}", AtomWarning, stacklevel=2)
        return None


class MethodOnLayer:
    """A method's weighted loss on a layer of a model; nothing for the plain method.

    Args:
        context: names the method and its device; its settings the layer, weight and options.
        model: the model that is trained.
        optimiser: trains the method's own parameters with the model's.
        features: the layer's number of features, where the layer itself does not tell.

    Raises:
        ExperimentError: the layer, the method or an option does not exist, or a value does not fit.
    """

    def __init__(
        self,
        context: Context,
        model: nn.Module,
        optimiser: torch.optim.Optimizer,
        features: int = 0,
    ) -> None:
        settings, self.fabric = context.settings, context.fabric
        self.graphed, self.compiled = settings.graph, settings.compile
        self.method: Method | None = None
        self.binding: Binding | None = None
        if context.method == "plain":
            return
        method, self.binding = bind(context.method, model, settings, context.seed, features)
        self.method = method.to(self.fabric.device)
        if self.fabric.world_size > 1:
            self.binding.total = partial(self.fabric.all_reduce, reduce_op="sum")  # type: ignore[assignment]
        learned = list(method.parameters())
        if learned:
            optimiser.add_param_group({"params": learned})

    def loss(self, labels: Tensor | None, again: Callable[[], Any] | None = None) -> Tensor | None:
        """The weighted loss of the model's last training forward; None for the plain method.

        Args:
            labels: the classes of the samples, if they have any.
            again: runs the model on the second view.
        """
        return None if self.binding is None else self.binding.loss(labels, again)

    def backward(
        self, task_loss: Tensor, labels: Tensor | None, again: Callable[[], Any] | None = None
    ) -> dict[str, Tensor]:
        """Backpropagate the task's loss plus the method's; returns the method's as "method".

        The method's own parameters get the mean gradient over all processes. Fabric does that for
        the model's parameters; the method is not part of the model.
        """
        method_loss = self.loss(labels, again)
        if method_loss is None:
            self.fabric.backward(task_loss)
            return {}
        self.fabric.backward(task_loss + method_loss)
        if self.method is not None and self.fabric.world_size > 1:
            for parameter in self.method.parameters():
                if parameter.grad is not None:
                    parameter.grad = self.fabric.all_reduce(parameter.grad, reduce_op="mean")  # type: ignore[assignment]
        return {"method": method_loss.detach()}

    def watch(self, on: bool) -> None:
        """Whether the next step shows how strong the method's gradient is.

        A graph replays what was captured, so it always does.
        """
        if self.binding is not None:
            self.binding.watch_gradients = on or self.graphed

    @property
    def strength(self) -> Any:
        """What the last step measured, for a graph to keep."""
        return None if self.binding is None else self.binding.strength

    @strength.setter
    def strength(self, value: Any) -> None:
        if self.binding is not None:
            self.binding.strength = value

    @property
    def gradient_shares(self) -> dict[str, float]:
        """Norms of the method's gradient over the task's in the last step that was watched.

        They are over the samples of all processes, each of which must read them.
        """
        return {} if self.binding is None else self.binding.gradient_shares

    @property
    def stats(self) -> dict[str, float]:
        """Statistics of the last step; waits for the device. Empty for methods without any."""
        return {} if self.binding is None else self.binding.stats

    def measured(self, what: str) -> dict[str, float]:
        """What the last step measured, by the property's name, as far as it is finite.

        Shares of gradients belong together: one that is not finite makes the others worthless.
        """
        found: dict[str, float] = getattr(self, what)
        finite = {name: round(value, 7) for name, value in found.items() if math.isfinite(value)}
        return finite if what == "stats" or len(finite) == len(found) else {}

    def why_no_shares(self) -> str:
        """A sentence for a first step without shares; empty for methods that never have any."""
        if self.binding is None or type(self.binding).gradient_shares is Binding.gradient_shares:
            return ""
        start = "At the first step there is no share of the method's gradient: "
        found = self.gradient_shares
        if self.compiled and not found:
            return f"{start}compile=true leaves it out. A short run without compile=true shows it"
        if not found:
            return f"{start}no gradient of the task arrives at the layer"
        if found["gradient_share"] == math.inf:
            return f"{start}the task's gradient at the layer is zero in this step; see later ones"
        return f"{start}a gradient at the layer is zero or not finite in this step; see later ones"

    def state_dict(self) -> dict[str, Any]:
        """The method's state, which is all that a resumed run needs."""
        return {} if self.method is None else self.method.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a state."""
        if self.method is not None:
            self.method.load_state_dict(state)
