"""A method on a layer of an experiment's model, by the method's name."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from atomsep.experiments.errors import ExperimentError
from atomsep.hooks.axes import feature_widths
from atomsep.hooks.targets import find_layers
from atomsep.methods import Binding, Method, make_method

if TYPE_CHECKING:
    from lightning.fabric import Fabric


class MethodOnLayer:
    """A method's weighted loss on a layer of a model; nothing for the plain method.

    Args:
        model: the model that is trained.
        name: the method's name; see `atomsep.methods`.
        layer: dotted name or pattern.
        layout: the axes of the layer's output.
        weight: factor of the loss.
        features: the layer's number of features, where the layer itself does not tell.
        seed: seed of what the method draws.
        options: the method's own options.

    Raises:
        ExperimentError: the layer, the method or an option does not exist, or a value does not fit.
    """

    def __init__(
        self,
        model: nn.Module,
        name: str,
        *,
        layer: str,
        layout: Any = "auto",
        weight: float = 1.0,
        features: int = 0,
        seed: int = 0,
        options: dict[str, Any] | None = None,
    ) -> None:
        self.method: Method | None = None
        self.binding: Binding | None = None
        if name == "plain":
            return
        try:
            layers = find_layers(model, layer).values()
            widths = {width for each in layers for width in feature_widths(each)}
            width = widths.pop() if len(widths) == 1 else max(features, 1)
            self.method = make_method(name, features=width, seed=seed, **(options or {}))
            if self.method is not None:
                self.binding = self.method.bind(model, layer, weight=weight, layout=layout)
        except (ValueError, TypeError) as error:
            raise ExperimentError(str(error)) from error

    def join(self, optimiser: torch.optim.Optimizer, device: torch.device) -> None:
        """Move the method to the model's device, and train its own parameters with the model's."""
        if self.method is not None:
            learned = list(self.method.to(device).parameters())
            if learned:
                optimiser.add_param_group({"params": learned})

    def loss(self, labels: Tensor | None, again: Callable[[], Any] | None = None) -> Tensor | None:
        """The weighted loss of the model's last training forward; None for the plain method.

        Args:
            labels: the classes of the samples, if they have any.
            again: runs the model on the second view.
        """
        return None if self.binding is None else self.binding.loss(labels, again)

    def average_gradients(self, fabric: Fabric) -> None:
        """Give the method's own parameters the mean gradient over all processes.

        Fabric does that for the model's parameters; the method is not part of the model.
        """
        if self.method is not None and fabric.world_size > 1:
            for parameter in self.method.parameters():
                if parameter.grad is not None:
                    parameter.grad = fabric.all_reduce(parameter.grad, reduce_op="mean")  # type: ignore[assignment]

    def state_dict(self) -> dict[str, Any]:
        """The method's state, which is all that a resumed run needs."""
        return {} if self.method is None else self.method.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a state."""
        if self.method is not None:
            self.method.load_state_dict(state)
