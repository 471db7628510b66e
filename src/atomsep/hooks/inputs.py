"""What a model was called with: how many samples, and images of which size."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from atomsep.hooks.switch import Switch


class _Own(threading.local):
    shapes: tuple[tuple[int, ...], ...] = ()


class ModelInput:
    """The shapes of the tensors in the model's call in progress; none outside of a call.

    Two hooks on the model note and forget them. Each thread has its own; a compiled graph cannot
    tell threads apart and uses a shared one.

    Args:
        model: the model whose call is noted.
        switch: turns the hooks on and off.
    """

    def __init__(self, model: nn.Module, switch: Switch | None = None) -> None:
        self.switch = switch or Switch()
        self.names = tuple(inspect.signature(model.forward).parameters)
        self.shared: tuple[tuple[int, ...], ...] = ()
        self._own = _Own()

    def __getstate__(self) -> dict[str, Any]:
        """Copies and pickles start outside of a call."""
        return {"switch": self.switch, "names": self.names}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, shared=(), _own=_Own())

    def listen(self, model: nn.Module) -> list[torch.utils.hooks.RemovableHandle]:
        """Register both hooks; the second runs also if the model raises."""
        return [
            model.register_forward_pre_hook(self._note, with_kwargs=True),
            model.register_forward_hook(self._forget, always_call=True),
        ]

    def _note(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self.switch.on():
            self._keep(self._shapes(args, kwargs))

    def _forget(self, module: nn.Module, args: Any, output: Any) -> None:
        self._keep(())

    def _keep(self, shapes: tuple[tuple[int, ...], ...]) -> None:
        self.shared = shapes
        if not torch.compiler.is_compiling():
            self._own.shapes = shapes

    def _shapes(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[int, ...], ...]:
        """What is read later: all sizes of maps, and the first size of the first sequence.

        A map has four or five axes, and its first axis holds the samples. Of other tensors, the
        first one in the order of the model's arguments is its main input.
        """
        named = [kwargs[name] for name in self.names if name in kwargs]
        rest = [value for name, value in kwargs.items() if name not in self.names]
        tensors = list(_tensors([*args, *named, *rest]))
        maps = [tuple(t.shape) for t in tensors if t.dim() > 3 and t.is_floating_point()]
        rows = [tuple(t.shape[:1]) for t in tensors if 2 <= t.dim() <= 3]
        return (*maps, *rows[:1])

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """Those of the call in progress."""
        return self.shared if torch.compiler.is_compiling() else self._own.shapes

    @property
    def samples(self) -> list[int]:
        """Numbers of samples that the call may have; several if its inputs differ."""
        return [shape[0] for shape in self.shapes]

    @property
    def images(self) -> list[tuple[int, ...]]:
        """The shapes of maps: `(M, C, H, W)` or `(M, T, C, H, W)`."""
        return [shape for shape in self.shapes if len(shape) > 1]


def _tensors(values: list[Any]) -> Iterator[Tensor]:
    """Tensors among the values and in mappings; in a list they may be samples, without an axis."""
    for value in values:
        if isinstance(value, Tensor) and not value.is_nested:
            yield value
        elif isinstance(value, Mapping):
            yield from _tensors(list(value.values()))
