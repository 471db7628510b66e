"""The layout of a layer's output: decided once per shape, and explained."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from atomsep.checks import transforms_active
from atomsep.core.layout import DESCRIPTIONS, Axes, Layout
from atomsep.hooks.axes import lacks_batch_axis
from atomsep.hooks.inputs import ModelInput
from atomsep.hooks.nearest import nearest_with_tokens
from atomsep.hooks.prefix import Prefix
from atomsep.hooks.watch import tell_once
from atomsep.hooks.witnesses import Decision, Witnesses

_UNSURE = "the model has class tokens, but it is not certain which they are: all tokens count"

_NO_GRID = (
    "layer {!r} has {} tokens. The model has class tokens, but without them the rest is not a grid "
    "of the image, and all of them count. Pass skip_tokens= to leave out tokens in front, mask= to "
    "leave out others, or skip_tokens=0 to keep them all"
)

_GUESSED = (
    "layer {!r} gives shape {}: the batch has as many samples as tokens, and nothing else tells "
    "which axis holds the samples. Axis 0 is assumed to hold them until a forward pass shows "
    'otherwise; pass layout="channels_last" if that is right, or layout="length_first" for '
    "(L, M, C)"
)

_ONE_MORE = (
    "layer {!r} has {} tokens, one more than a grid of the image, and all of them count. If the "
    "first is a class token, pass skip_tokens=1, otherwise skip_tokens=0"
)


class LayoutFinder:
    """Finds the layout of what one layer returns.

    Args:
        model: the model around the layer.
        name: the layer's name, for messages.
        layer: the module whose output is read.
        axes: the axes of the output, or "auto" to decide them.
        skip_tokens: how many tokens in front to leave out, or "auto" for the class, distillation
            and register tokens of a vision transformer.
        model_input: what the model was called with.

    Raises:
        ValueError: the axes or the number of tokens are invalid.
    """

    def __init__(
        self,
        model: nn.Module,
        name: str,
        layer: nn.Module,
        axes: Axes | Literal["auto"],
        skip_tokens: int | Literal["auto"],
        model_input: ModelInput,
    ) -> None:
        if axes != "auto" and axes not in DESCRIPTIONS:
            raise ValueError(f"layout must be 'auto' or one of {list(DESCRIPTIONS)}, not {axes!r}")
        number = isinstance(skip_tokens, int) and not isinstance(skip_tokens, bool)
        if skip_tokens != "auto" and not (number and skip_tokens >= 0):
            raise ValueError(f"skip_tokens must be at least 0, or 'auto', not {skip_tokens!r}")
        self.model, self.name, self.layer = model, name, layer
        self.axes, self.skip_tokens = axes, skip_tokens
        self.input = model_input
        self.prefix = Prefix(model, layer)
        self.witnesses = Witnesses(model, name, layer, model_input)
        self.skipped: dict[int, int] = {}
        self.told: set[str] = set()
        self.resolved: tuple[torch.Size, bool, Layout] | None = None
        self.decided: tuple[Decision, Layout, int] | None = None

    def __call__(self, latent: Tensor, inputs: tuple[Any, ...] = ()) -> Layout:
        """The layout of an output, decided once per shape.

        Args:
            latent: the output.
            inputs: the positional arguments of the layer.

        While compiling there is no graph to read. There, what an earlier forward decided counts;
        without one, the witnesses that need no graph.

        Raises:
            ValueError: the shape fits no layout, or none is certain.
        """
        if torch.compiler.is_compiling():
            return self._decide(latent, graph=False, moved=_moved(inputs))[1]
        # The graph of a transformed function is that of its own level.
        graph = not transforms_active() and latent.grad_fn is not None
        resolved = self.resolved  # another thread may replace it meanwhile
        if resolved is None or resolved[0] != latent.shape or resolved[1] < graph:
            decision, layout = self._decide(latent, graph, _moved(inputs))
            dim = latent.dim()
            known = self.witnesses.earlier.get(dim)
            if graph or known is None or known.guessed:
                self.witnesses.earlier[dim], self.skipped[dim] = decision, layout.skip
            if decision.guessed:
                shape = tuple(latent.shape)
                tell_once(self.told, "samples", _GUESSED.format(self.name, shape))
            self.decided = decision, layout, dim
            self.resolved = resolved = latent.shape, graph, layout
        return resolved[2]

    def _decide(self, latent: Tensor, graph: bool, moved: bool) -> tuple[Decision, Layout]:
        shape, name = tuple(latent.shape), self.name
        unsure = self.axes == "auto" or len(shape) < 3
        if unsure and lacks_batch_axis(self.layer, len(shape)):
            raise ValueError(
                f"layer {name!r} gives shape {shape}: its input has no axis for the samples. Call "
                f"the model with a batch, for a single sample x as model(x[None])"
            )
        if not 3 <= len(shape) <= 5:
            near = nearest_with_tokens(self.model, latent, self.layer)
            hint = "" if near is None else f". The nearest one that ran before it is {near!r}"
            raise ValueError(
                f"layer {name!r} gives shape {shape}, which has no token axis. Attach to a layer "
                f"before pooling or flattening, whose output is one of "
                f"{', '.join(DESCRIPTIONS.values())}{hint}"
            )
        if self.axes != "auto":
            decision = Decision(self.axes, shape[-1], "layout=")
        else:
            decision = self.witnesses.decide(latent, graph=graph, moved=moved)
        if decision.axes == "length_first" and len(shape) != 3:
            raise ValueError(f'layout="length_first" means (L, M, C), but {name!r} gives {shape}')
        tokens = math.prod(Layout(decision.axes).token_shape(latent)[1:])
        skip = self._skip(tokens, len(shape), decision.axes)
        if skip is None and not torch.compiler.is_compiling():
            decision = replace(decision, why=f"{decision.why} ({_UNSURE})")
        layout = Layout(decision.axes, skip or 0)
        if layout.skip >= tokens > 0:
            raise ValueError(
                f"skip_tokens={layout.skip} leaves no tokens: layer {name!r} gives shape {shape}, "
                f"which has {tokens}"
            )
        return decision, layout

    def _skip(self, tokens: int, dim: int, axes: Axes) -> int | None:
        if self.skip_tokens != "auto":
            return self.skip_tokens
        if dim != 3 or axes == "channels_first":
            return 0
        known = dim in self.skipped and torch.compiler.is_compiling()
        if known or not self.input.shapes:
            return self.skipped.get(dim, 0)
        images = self.input.images
        other_inputs = len(images) < len(self.input.shapes)
        eager = not torch.compiler.is_compiling()
        skip = self.prefix.of(tokens, images, other_inputs=other_inputs)
        if eager and not other_inputs and (skip is None or self.prefix.misses(tokens, images)):
            message = _NO_GRID if skip is None else _ONE_MORE
            tell_once(self.told, "prefix", message.format(self.name, tokens))
        return skip

    def describe(self, read_as: tuple[Layout, tuple[int, ...]] | None = None) -> str:
        """What was decided for the last new shape, and why.

        Args:
            read_as: layout and shape of the last forward, for what was decided while compiling.
        """
        why, dim = "while compiling", 0
        if self.decided is not None:
            decision, layout, dim = self.decided
            why = f"by {decision.why}"
        elif read_as is not None:
            layout, dim = read_as[0], len(read_as[1])
        else:
            return "decided in the first forward"
        tokens = {3: ["L"], 4: ["H", "W"], 5: ["T", "H", "W"]}[dim]
        letters = {
            "channels_first": ["M", "C", *tokens],
            "channels_last": ["M", *tokens, "C"],
            "length_first": ["L", "M", "C"],
        }[layout.axes]
        skipped = ""
        if layout.skip:
            number = "token" if layout.skip == 1 else f"{layout.skip} tokens"
            skipped = f" without the first {number}"
        return f"{layout.axes} ({', '.join(letters)}){skipped}, {why}"


def _moved(inputs: tuple[Any, ...]) -> bool:
    """Whether a layer's input is a sequence whose last axis is not the last one in memory."""
    first = inputs[0] if inputs else None
    if not isinstance(first, Tensor) or first.dim() != 3 or first.layout != torch.strided:
        return False
    return first.shape[-1] > 1 and first.stride(-1) != 1
