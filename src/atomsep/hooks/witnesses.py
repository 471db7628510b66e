"""Decide which axes of a layer's output hold samples, tokens and features.

Several witnesses tell: the types of the layer's modules, the graph that made the output, weights
with one axis, the number of samples that the model was called with, and `batch_first`. None of
them always speaks. If they agree, the layout is decided; if they contradict each other, or nobody
knows the features, it is refused with what each of them said.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from atomsep.core.layout import DESCRIPTIONS, Axes
from atomsep.hooks.attention import find_length
from atomsep.hooks.axes import (
    batch_first,
    feature_axis,
    feature_widths,
    length_may_be_first,
    may_mix_tokens,
)
from atomsep.hooks.inputs import ModelInput
from atomsep.hooks.shaping import Shaping, find_shaping, has_compiled_part


class Undecided(ValueError):
    """Nobody knows the features' axis of an output that has no graph; one with a graph may tell."""


@dataclass(frozen=True)
class Decision:
    """The axes of a layer's output, and why.

    Attributes:
        axes: where samples, tokens and features are.
        width: the number of features.
        why: what told, for `print(attachment)`.
        walked: whether a graph was read.
        shaping: what it said.
        guessed: whether axis 0 was taken for the samples without a witness.
    """

    axes: Axes
    width: int
    why: str
    walked: bool = False
    shaping: Shaping | None = None
    guessed: bool = False

    def fits(self, shape: tuple[int, ...]) -> bool:
        """Whether an output of another shape may be read in the same way."""
        return shape[_features(self.axes, len(shape))] == self.width


class Witnesses:
    """What is known about the axes of one layer's output.

    Args:
        model: the model around the layer.
        name: the layer's name, for messages.
        layer: the module whose output is read.
        model_input: what the model was called with.
    """

    def __init__(
        self, model: nn.Module, name: str, layer: nn.Module, model_input: ModelInput
    ) -> None:
        self.described = f"layer {name!r} ({type(layer).__name__})"
        self.input = model_input
        self.typed = {dim: feature_axis(layer, dim) for dim in (3, 4, 5)}
        self.widths = feature_widths(layer)
        self.may_mix_tokens = may_mix_tokens(layer)
        self.batch_first = batch_first(layer)
        self.length_may_be_first = length_may_be_first(model)
        self.batch_is_first = any(batch_first(module) for module in model.modules())
        self.weights = {p.shape[0] for p in layer.parameters() if p.dim() == 1 and len(p) > 1}
        self.earlier: dict[int, Decision] = {}

    def decide(self, latent: Tensor, *, graph: bool, moved: bool = False) -> Decision:
        """The axes of an output.

        Args:
            latent: the output, with three to five axes.
            graph: whether its graph may be read.
            moved: whether the layer's input is a view whose last axis was another one before.

        Raises:
            ValueError: the witnesses contradict each other, or leave the layout open.
            Undecided: the same, but an output with a graph may tell.
        """
        shape = tuple(latent.shape)
        earlier = self.earlier.get(len(shape))
        if earlier is not None and not earlier.fits(shape):
            earlier = None
        if earlier is not None and torch.compiler.is_compiling():
            return earlier
        walked = earlier is not None and earlier.walked
        shaping = earlier.shaping if earlier is not None else None
        if graph and not walked:
            shaping, walked = find_shaping(latent), True
        if shaping is not None and shaping.features is None:
            raise self._refusal(shape, [f"the graph has {shaping.by}"])
        said = self._say_features(shape, shaping)
        axes = {axis for axis, _ in said}
        if not axes and earlier is not None:
            said = [(_features(earlier.axes, len(shape)), "earlier forwards")]
            axes = {said[0][0]}
        texts = [f"{_says(who)} that axis {axis} holds the features" for axis, who in said]
        if not axes and not graph:
            raise self._refusal(shape, [_NO_GRAPH], Undecided)
        if not axes and has_compiled_part(latent):
            raise self._refusal(shape, [_COMPILED])
        if axes != {1} and axes != {len(shape) - 1}:
            raise self._refusal(shape, texts)
        settled = shaping is not None and shaping.settled
        if moved and self.may_mix_tokens and not settled:
            raise self._refusal(shape, [_MOVED], ValueError if graph else Undecided)
        [features] = axes
        sure = None if earlier is None or earlier.guessed else earlier.axes
        length = partial(find_length, latent) if graph else None
        samples, by = self._samples(shape, features, shaping, sure, length)
        guessed = by == [_GUESSED] and not (self.input.images or self.batch_is_first)
        sequence: Axes = "length_first" if samples == 1 else "channels_last"
        why = ", ".join([*(who for _, who in said), *by])
        axes_found: Axes = "channels_first" if features == 1 else sequence
        return Decision(axes_found, shape[features], why, walked, shaping, guessed)

    def _say_features(
        self, shape: tuple[int, ...], shaping: Shaping | None
    ) -> list[tuple[int, str]]:
        """The axis of the features as each witness sees it."""
        said = []
        typed = self.typed[len(shape)]
        fits = typed is not None and shape[typed] in self.widths
        if typed is not None and fits:
            said.append((typed, "its type"))
            if torch.compiler.is_compiling():
                return said  # comparing more sizes would make the graph depend on them
        if shaping is not None and shaping.features is not None:
            said.append((shaping.features, f"its graph ({shaping.by})"))
        matching = [axis for axis, size in enumerate(shape) if size in self.weights]
        if len(matching) == 1 and (fits or typed is None):
            said.append((matching[0], "its weights"))
        return said

    def _samples(
        self,
        shape: tuple[int, ...],
        features: int,
        shaping: Shaping | None,
        earlier: Axes | None,
        find_length: Callable[[], int | None] | None,
    ) -> tuple[int, list[str]]:
        """The axis of the samples, 0 or 1, and who says so."""
        sequence = len(shape) == 3 and features == 2
        counts = self.input.samples
        possible = (0, 1) if sequence else (0,)
        here = [axis for axis in possible if shape[axis] in counts]
        if counts and (not here or self._may_be_windows(shape, here, shaping, earlier)):
            given = " or ".join(str(count) for count in dict.fromkeys(counts))
            fits = "surely fits" if here else "fits"
            raise self._refusal(
                shape,
                [
                    f"axis {features} holds the features, but no other axis {fits} the model's "
                    f"input with {given} samples: are they cut into windows, or packed into rows?"
                ],
            )
        if shaping is not None and shaping.folded:
            raise self._refusal(
                shape,
                [f"the graph has {shaping.by} for fewer samples than axis {shaping.samples} holds"],
            )
        if shaping is not None and self._are_elsewhere(shape, possible, shaping):
            told = f"{shaping.by} in its graph says that axis {shaping.samples} holds the samples"
            also = [f"axis {axis} has as many entries as there are samples" for axis in here]
            raise self._refusal(shape, [f"{told}, where no layout has them", *also])
        if not sequence:
            return 0, ["the number of samples"] if here else []
        said = {here[0]: "the number of samples"} if len(here) == 1 else {}
        if shaping is not None and shaping.samples in (0, 1):
            said.setdefault(shaping.samples, f"{shaping.by} in its graph")
        if self.batch_first is not None:
            if not self.batch_first and not self.input.images:
                said.pop(0, None)  # what comes in may be (L, M, C), too
            said.setdefault(0 if self.batch_first else 1, f"batch_first={self.batch_first}")
        elif self.length_may_be_first and 1 not in said and not (said and self.input.images):
            text = "axis 2 holds the features, but a layer of the model has batch_first=False, so "
            raise self._refusal(shape, [text + "that axis 0 may be the length"], features=features)
        if len(said) > 1:
            texts = [f"{who} says that axis {axis} holds the samples" for axis, who in said.items()]
            raise self._refusal(shape, texts, features=features)
        if not said and earlier is None and len(here) > 1 and find_length is not None:
            length = find_length()
            if length in (0, 1):
                said[1 - length] = "attention in its graph"
        for axis, who in said.items():
            return axis, [who]
        if earlier is None and len(here) > 1:
            return 0, [_GUESSED]
        return (1 if earlier == "length_first" else 0), []

    def _are_elsewhere(
        self, shape: tuple[int, ...], possible: tuple[int, ...], shaping: Shaping
    ) -> bool:
        """Whether the graph has the samples on an axis where no layout has them.

        Unless that axis has another length than the number of samples. Then it holds something
        else, such as the frames of a single video, that the operation took for samples.
        """
        axis, counts = shaping.samples, self.input.samples
        if axis is None or axis in possible:
            return False
        return not counts or shape[axis] in counts

    def _may_be_windows(
        self,
        shape: tuple[int, ...],
        here: list[int],
        shaping: Shaping | None,
        earlier: Axes | None,
    ) -> bool:
        """Whether axis 0 may hold windows of an image, of as many tokens as there are samples.

        Such windows look like (L, M, C), unless something else says that the length comes first.
        """
        if here != [1] or not self.input.images or shape[0] % shape[1]:
            return False
        said = shaping is not None and shaping.samples == 1
        said = said or earlier == "length_first"
        return not (said or self.length_may_be_first or self.batch_first is False)

    def _refusal(
        self,
        shape: tuple[int, ...],
        said: list[str],
        kind: type[ValueError] = ValueError,
        features: int | None = None,
    ) -> ValueError:
        """The error for a layout that is not certain; `features` is their axis if that is known."""
        if len(shape) > 3 and math.prod(shape[2:]) == 1:
            return kind(
                f"{self.described} gives shape {shape}: one token per sample, so there is nothing "
                f"to weigh within a sample; attach before pooling"
            )
        options = "; ".join(
            f'layout="{key}" for {text}'
            for key, text in DESCRIPTIONS.items()
            if features in (None, _features(key, len(shape)))
        )
        heard = "; ".join(said) or (
            "neither its type, its graph nor its weights tell which axis holds the features"
        )
        return kind(
            f"{self.described} gives shape {shape}. Which axis holds the tokens is not "
            f"certain ({heard}); pass {options}"
        )


def _says(witness: str) -> str:
    return f"{witness} {'say' if witness in ('its weights', 'earlier forwards') else 'says'}"


def _features(axes: Axes, dim: int) -> int:
    return 1 if axes == "channels_first" else dim - 1


_COMPILED = (
    "the graph of compiled code cannot be read; run one uncompiled forward pass in training first, "
    "which decides it"
)
_GUESSED = "axis 0 assumed to hold the samples"
_MOVED = (
    "its input is a transposed view, so it may mix tokens; an uncompiled forward pass in training "
    "would tell, if gradients reach the norm or convolution before it"
)
_NO_GRAPH = (
    "without a graph, only the types of its modules tell; an uncompiled forward pass in training "
    "tells more, if gradients reach the layer"
)
