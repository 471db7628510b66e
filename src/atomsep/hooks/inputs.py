"""What a model was called with: how many samples, and images of which size."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from atomsep.hooks.switch import MethodHook, Switch

Shapes = tuple[tuple[int, ...], ...]


class _Own(threading.local):
    shapes: Shapes = ()


class ModelInput:
    """The sizes of the tensors in the model's call in progress; none outside of a call.

    Two hooks on the model note and forget them. Each thread has its own. A compiled graph cannot
    tell threads apart and uses a shared one, which holds the tensors while compiling: a graph that
    depended on numbers would be compiled again for each of them.

    Args:
        model: the model whose call is noted.
        switch: turns the hooks on and off.
    """

    def __init__(self, model: nn.Module, switch: Switch | None = None) -> None:
        self.switch = switch or Switch()
        self.names = tuple(inspect.signature(model.forward).parameters)
        self.shared: tuple[Tensor, ...] | Shapes = ()
        self._own = _Own()

    def __getstate__(self) -> dict[str, Any]:
        """Copies and pickles start outside of a call."""
        return {"switch": self.switch, "names": self.names}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """As above."""
        self.__dict__.update(state, shared=(), _own=_Own())

    def listen(self, model: nn.Module) -> list[RemovableHandle]:
        """Register both hooks; the second runs also if the model raises."""
        return [
            model.register_forward_pre_hook(MethodHook(self._note), with_kwargs=True),
            model.register_forward_hook(MethodHook(self._forget), always_call=True),
        ]

    def _note(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self.switch.on():
            named = [kwargs[name] for name in self.names if name in kwargs]
            rest = [value for name, value in kwargs.items() if name not in self.names]
            tensors = _main_tensors([*args, *named, *rest])
            if torch.compiler.is_compiling():
                self.shared = tensors
            else:
                self.shared = self._own.shapes = _sizes(tensors)

    def _forget(self, module: nn.Module, args: Any, output: Any) -> None:
        if not torch.compiler.is_compiling():
            self.shared = self._own.shapes = ()
        elif self.switch.on():  # exporting, any write counts as a side effect
            self.shared = ()

    @property
    def shapes(self) -> Shapes:
        """All sizes of maps, and the number of rows of the first sequence."""
        if not torch.compiler.is_compiling():
            return self._own.shapes
        shared: Any = self.shared
        return _sizes(shared) if shared and isinstance(shared[0], Tensor) else shared

    @property
    def samples(self) -> list[int]:
        """Numbers of samples that the call may have; several if its inputs differ."""
        return [shape[0] for shape in self.shapes]

    @property
    def images(self) -> list[tuple[int, ...]]:
        """The shapes of maps: `(M, C, H, W)`, `(M, T, C, H, W)` or `(M, C, T, H, W)`."""
        return [shape for shape in self.shapes if len(shape) > 1]


def _sizes(tensors: tuple[Tensor, ...]) -> Shapes:
    return tuple(tuple(t.shape) if t.dim() > 3 else (t.shape[0],) for t in tensors)


def _main_tensors(values: list[Any]) -> tuple[Tensor, ...]:
    """All maps and the first sequence, whose first axes hold the samples.

    A map has four or five axes. Of other tensors, the first in the order of the model's arguments
    is its main input; later ones may be positions or masks without samples.
    """
    tensors = list(_tensors(values))
    maps = [t for t in tensors if 4 <= t.dim() <= 5 and t.is_floating_point()]
    rows = [t for t in tensors if 2 <= t.dim() <= 3]
    return (*maps, *rows[:1])


def _tensors(values: list[Any]) -> Iterator[Tensor]:
    """Tensors among the values and in mappings; in a list they may be samples, without an axis."""
    for value in values:
        if isinstance(value, Tensor) and not value.is_nested:
            yield value
        elif isinstance(value, Mapping):
            yield from _tensors(list(value.values()))
