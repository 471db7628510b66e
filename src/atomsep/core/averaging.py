"""Gradients of learned maps, averaged over processes at the end of a backward pass.

The maps are not part of the model, so no data-parallel wrapper knows them. A collective in the
midst of the pass would meet those of the wrapper, or of other maps, in an order that differs
between ranks if a layer did not run on one of them: ranks would wait for each other for ever, or
add up gradients of different maps. At the end of the pass, the wrapper's collectives have all been
sent, and the maps' follow in the order of their first losses, which is the same on every rank.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from functools import partial
from typing import Any
from weakref import ref

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd import Variable

_orders = itertools.count()

_waiting: dict[int, dict[Maps, None]] = {}
"""What to average at the end of each backward pass that is under way, by autograd's number."""


class Maps:
    """The parameters of a loss's maps, and the processes over which their gradients are averaged.

    Args:
        group: process group, None for all processes.
    """

    def __init__(self, group: Any) -> None:
        self.group = group
        self.order = math.inf
        self.parameters: list[ref[Tensor]] = []  # which hold this object by their hooks

    def agreed(self) -> None:
        """Take a place in the order of averaging; at the first loss, which all ranks ask for."""
        if self.order == math.inf:
            self.order = next(_orders)

    def watch(self, parameters: Iterable[Tensor]) -> None:
        """Average the gradients of these parameters, unless those of other maps include them.

        Sharded parameters are left out: what shards them averages their gradients too.
        """
        self.parameters = []
        for parameter in parameters:
            if hasattr(parameter, "to_local"):  # a DTensor
                continue
            hooks = (parameter._post_accumulate_grad_hooks or {}).values()
            noting = next((hook for hook in hooks if isinstance(hook, _Noting)), None)
            if noting is None and parameter.requires_grad:
                noting = _Noting(self)
                parameter.register_post_accumulate_grad_hook(noting)
            if noting is not None and noting.maps is self:
                self.parameters.append(ref(parameter))

    @torch.no_grad()
    def average(self) -> None:
        """One collective per parameter; one without a gradient here may have it elsewhere."""
        for parameter in (each() for each in self.parameters):
            if parameter is not None and parameter.requires_grad:
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
                # What earlier passes left is equal on all ranks, and so is its mean.
                mean = parameter.grad / dist.get_world_size(self.group)
                dist.all_reduce(mean, group=self.group)
                parameter.grad.copy_(mean)


class _Noting:
    """A hook that runs when a parameter has got its gradient."""

    def __init__(self, maps: Maps) -> None:
        self.maps = maps

    def __call__(self, parameter: Tensor) -> None:
        number = torch._C._current_graph_task_id()
        if number not in _waiting:
            _waiting[number] = {}
            engine = Variable._execution_engine
            # Queued again when it runs, so that it follows all that is queued in the pass.
            engine.queue_callback(lambda: engine.queue_callback(partial(_finish, number)))
        _waiting[number][self.maps] = None


def _finish(number: int) -> None:
    """Average what got a gradient in a backward pass."""
    for maps in sorted(_waiting.pop(number), key=lambda maps: maps.order):
        maps.average()
