"""A method on a layer of a model: from the forward pass to the method's loss.

Atom modeling is attached as any user attaches it. The baselines get the layer's tokens from a
hook; a baseline that replaces what the model goes on with (vector quantisation) does it there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

import atomsep
from atomsep.core.layout import Layout
from atomsep.experiments.errors import ExperimentError
from atomsep.hooks.axes import feature_widths, infer_axes, resolve_layout
from atomsep.hooks.masks import MaskSlot, MaskTap, find_mask_hosts
from atomsep.hooks.targets import find_layers, pick_tensor, put_tensor
from atomsep.methods import Method, make_method
from atomsep.methods.atom import Atom

if TYPE_CHECKING:
    from lightning.fabric import Fabric


class LatentTap:
    """A hook that keeps the tokens of a layer's last training forward, and their mask.

    The consumers get a copy, so that one that writes in place leaves the tokens as they were.
    """

    def __init__(self, model: nn.Module, target: str, layout: str, method: Method) -> None:
        layers = find_layers(model, target)
        if len(layers) > 1:
            raise ExperimentError(
                f"layer={target!r} means several layers ({', '.join(layers)}), and this method "
                f"acts on one; name it"
            )
        [(self.name, layer)] = layers.items()
        self.model, self.method = model, method
        self.axes: Any = {
            dim: infer_axes(layer, model, dim) if layout == "auto" else layout for dim in (3, 4, 5)
        }
        self.widths = feature_widths(layer) if layout == "auto" else None
        self.slot = MaskSlot()
        self.held: tuple[Tensor, Tensor | None] | None = None
        hosts = find_mask_hosts(model, layer, None)
        for host, source in hosts:
            hook = MaskTap(self.slot, host, source, outermost=host is hosts[0][0])
            host.register_forward_pre_hook(hook, with_kwargs=True)
        layer.register_forward_hook(self)

    def __call__(self, module: nn.Module, args: Any, output: Any) -> Any:
        """Keep the tokens; hand on what the method makes of them."""
        key, latent = pick_tensor(output, None, self.name)
        layout = resolve_layout(self.axes, 0, self.name, type(module).__name__, latent, self.widths)
        tokens = layout.tokens(latent)
        if self.model.training and torch.is_grad_enabled():
            mask = self.slot.value
            self.held = (tokens, None if mask is None else layout.flatten_mask(mask, latent))
        passed = self.method.pass_on(tokens)
        if passed is tokens:
            return put_tensor(output, key, latent.clone())
        return put_tensor(output, key, _as_output(passed, layout, latent))

    def take(self) -> tuple[Tensor, Tensor | None]:
        """Tokens `(M, N, h)` and mask `(M, N)` of the last training forward."""
        assert self.held is not None, "no training forward since the last call"
        held, self.held = self.held, None
        return held


def _as_output(tokens: Tensor, layout: Layout, like: Tensor) -> Tensor:
    """Tokens `(M, N, h)` in the axes of the layer's output."""
    if layout.axes == "channels_first":
        return tokens.transpose(1, 2).reshape(like.shape)
    return (tokens.transpose(0, 1) if layout.axes == "length_first" else tokens).reshape(like.shape)


class MethodOnLayer:
    """A method's weighted loss on a layer of a model, whatever the method.

    Args:
        model: what is trained.
        name: of the method; see `atomsep.methods`.
        layer: dotted name or pattern.
        layout: of the layer's output.
        weight: factor of the loss.
        features: the layer's feature count, for methods with parameters.
        seed: of what the method draws.
        options: the method's own.
    """

    def __init__(
        self,
        model: nn.Module,
        name: str,
        *,
        layer: str,
        layout: str = "auto",
        weight: float = 1.0,
        features: int = 0,
        seed: int = 0,
        options: dict[str, Any] | None = None,
    ) -> None:
        self.weight = weight
        try:
            self.method = make_method(name, features=max(features, 1), seed=seed, **(options or {}))
            if isinstance(self.method, Atom):
                self.attachment = atomsep.attach(
                    model,
                    layer,
                    self.method.criterion,
                    weight=weight,
                    layout=layout,  # type: ignore[arg-type]
                )
            elif self.method is not None:
                self.tap = LatentTap(model, layer, layout, self.method)
        except (ValueError, TypeError) as error:
            raise ExperimentError(str(error)) from error

    @property
    def second_view(self) -> str | None:
        """What makes the second view that the method needs: "augmentation", "dropout" or None."""
        return None if self.method is None else self.method.second_view

    def loss(self, labels: Tensor | None, again: Callable[[], Any] | None = None) -> Tensor | None:
        """The weighted loss of the model's last training forward; None for the plain method.

        Args:
            labels: of the samples, where they have any.
            again: runs the model on the second view.
        """
        if self.method is None:
            return None
        if isinstance(self.method, Atom):
            return self.attachment.loss()
        latent, mask = self.tap.take()
        second = None
        if self.method.second_view is not None:
            assert again is not None
            again()
            second, _ = self.tap.take()
        loss: Tensor = self.weight * self.method(latent, labels, mask, second)
        return loss

    def average_gradients(self, fabric: Fabric) -> None:
        """Give the method's own parameters the mean gradient of all processes.

        Those of the model get it from Fabric; the method is no part of the model.
        """
        if self.method is not None and fabric.world_size > 1:
            for parameter in self.method.parameters():
                if parameter.grad is not None:
                    parameter.grad = fabric.all_reduce(parameter.grad, reduce_op="mean")  # type: ignore[assignment]

    def state_dict(self) -> dict[str, Any]:
        """Parameters and the number of draws: what a resumed run needs."""
        if self.method is None:
            return {}
        draws = self.method.criterion.draws if isinstance(self.method, Atom) else 0
        return {"method": self.method.state_dict(), "draws": draws}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a state."""
        if self.method is None:
            return
        self.method.load_state_dict(state["method"])
        if isinstance(self.method, Atom):
            self.method.criterion.draws = state["draws"]
