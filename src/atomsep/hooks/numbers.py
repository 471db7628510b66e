"""`stats` as a mapping that says why a number is not there."""

from __future__ import annotations

import difflib
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, TypeVar

from atomsep.hooks.strength import NAMES, Strength

V = TypeVar("V")

START = "stats has no gradient_share: "
UNWATCHED = (
    f"{START}gradients were not watched in the last forward pass. Set attachment.watch_gradients = "
    f"True before the forward pass, and read stats after backward()"
)
EVALUATED = (
    f"{START}the last forward pass was not in training. Read stats after the backward() of a "
    f"training step"
)
COMPILED = (
    f"{START}compiled models have none. Watch some steps before you compile, with "
    f"attachment.watch_gradients = True"
)
TRANSFORMED = f"{START}the last forward pass ran inside a torch.func transform, which has none"
NO_BACKWARD = (
    f"{START}no gradient has arrived at the layer since the last forward pass. Read stats "
    f"after backward(); if it has run, everything before the layer is frozen"
)
NO_LOSS = (
    f"{START}only the task's gradient has arrived at the layer. Call backward() on the sum: "
    f"(task + attachment.loss()).backward()"
)
NO_TASK = (
    f"{START}only the atom loss's gradient has arrived at the layer. Call backward() on the sum, "
    f"(task + attachment.loss()).backward(); if that is what you did, the task's loss does not "
    f"depend on the layer"
)
BY_MAPS = (
    "stats has no {0!r}: learned maps read all features, so there is only gradient_share, of the "
    "whole gradient"
)


class NoNumberError(KeyError):
    """A number that stats does not have; the message says why."""

    def __str__(self) -> str:
        """The sentence, which a KeyError would put in quotes."""
        return str(self.args[0])


class Numbers(dict[str, V]):
    """A dictionary whose `[name]` raises a sentence for a name that is not there.

    Everything else is as in any dictionary; pickled, it is an ordinary one.

    Args:
        values: the numbers.
        absent: a sentence by name, for names that may be there at other times.

    Example:
        >>> Numbers({"energy": 1.0})["enrgy"]
        Traceback (most recent call last):
        atomsep.hooks.numbers.NoNumberError: stats has no 'enrgy'; did you mean 'energy'?
    """

    def __init__(self, values: Mapping[str, V], absent: Mapping[str, str] | None = None) -> None:
        super().__init__(values)
        self.absent = dict(absent or {})

    def __missing__(self, name: str) -> V:
        """Raise the sentence."""
        if name in self.absent:
            raise NoNumberError(self.absent[name])
        near = difflib.get_close_matches(str(name), [*self, *self.absent], 1)
        hint = f"; did you mean {near[0]!r}?" if near else f"; it has {', '.join(self)}"
        raise NoNumberError(f"stats has no {name!r}{hint}")

    def __reduce__(self) -> tuple[Any, ...]:
        """An ordinary dictionary, which `torch.load` takes with `weights_only`."""
        return OrderedDict, (list(self.items()),)


def absent_shares(
    strength: Strength | None, *, training: bool, compiled: bool, transformed: bool
) -> dict[str, str]:
    """Why shares of gradients are absent, by name; empty if all are there.

    Args:
        strength: the norms of the gradients of the last forward, if they were watched.
        training: whether that was a training forward.
        compiled: whether it was compiled.
        transformed: whether it ran inside a transform.
    """
    if not training:
        return dict.fromkeys(NAMES, EVALUATED)
    if strength is None:
        why = COMPILED if compiled else TRANSFORMED if transformed else UNWATCHED
        return dict.fromkeys(NAMES, why)
    if strength.own is None or strength.task is None:
        none = strength.own is None and strength.task is None
        why = NO_BACKWARD if none else NO_LOSS if strength.own is None else NO_TASK
        return dict.fromkeys(NAMES, why)
    return {} if strength.feature is not None else {n: BY_MAPS.format(n) for n in NAMES[1:]}


def by_layer(layers: Mapping[str, Mapping[str, float]]) -> dict[str, str]:
    """Where the numbers of several layers are, by name."""
    first = next(iter(layers), "")
    names = {*NAMES, *layers.get(first, ())}
    return {
        name: f"stats is a dictionary by layer here: stats[{first!r}][{name!r}]" for name in names
    }
