"""What is held of a layer's last forward, separately for each thread."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch._subclasses import FakeTensor
from torch.autograd import forward_ad

from atomsep.checks import transforms_active
from atomsep.core.layout import Layout
from atomsep.core.statistics import Statistics
from atomsep.hooks.handed_on import HandedOn, Run, graph_freed
from atomsep.hooks.regions import Regions
from atomsep.hooks.strength import Strength


@dataclass(eq=False)
class Held:
    """What one thread holds of its last forwards through a layer.

    Attributes:
        statistics: of the last training forward, with its graph, until its loss is taken.
        earlier: the runs before it, where all of them count.
        taken: of the last training forward without the graph, after its loss was taken.
        seen: of the last forward without a graph, if it was not a training forward.
        training: whether the last forward was a training forward.
        charge: token importance of the last forward, `(M, N)`.
        read_as: layout and shape of the output that the importance belongs to.
        idle_reason: why the last forward gave no loss; empty if it gave one.
        depth: how many transforms the statistics were computed under.
        handed_on: by the last training forward; None where nobody watches it.
        watched: the same of all forwards since the last look, in which somebody may write to it.
        strength: norms of its gradients, where they are watched.
        compiled: whether it was a compiled forward, which shows no gradients.
        forwards: how many training forwards there were.
        losses: how many losses were taken.
        most: the largest number of runs that one of them was taken over.
        zeros: how many zeros were given since the last of them.
        left_out: whether a run trained the model that the loss left out.
    """

    statistics: Statistics | None = None
    earlier: tuple[Run, ...] = ()
    taken: Statistics | None = None
    seen: Statistics | None = None
    training: bool = False
    charge: Tensor | None = None
    read_as: tuple[Layout, tuple[int, ...]] | None = None
    idle_reason: str = ""
    depth: int = 0
    handed_on: HandedOn | None = None
    watched: tuple[HandedOn, ...] = ()
    strength: Strength | None = None
    compiled: bool = False
    forwards: int = 0
    losses: int = 0
    most: int = 0
    zeros: int = 0
    left_out: bool = False

    def last_numbers(self) -> Statistics | None:
        """The statistics of the last forward, without a graph."""
        if not self.training:
            return self.seen
        if self.depth or self.statistics is None:
            return self.taken
        return self.statistics.detach()

    def move_from(self, other: Held) -> None:
        """Take over what a compiled forward left, in memory of our own.

        The next run of a CUDA graph overwrites its outputs.
        """
        if not isinstance(other.charge, FakeTensor):  # left by strict export in PyTorch 2.6
            with torch.inference_mode(False), torch.enable_grad():
                if other.statistics is not None:
                    self.statistics = _copied(other.statistics)
                    kept = [
                        r.statistics for r in other.earlier if not graph_freed(r.statistics.table)
                    ]
                    self.earlier += tuple(Run(_copied(statistics)) for statistics in kept)
                elif other.taken is not None:
                    self.statistics, self.earlier, self.taken = None, (), _copied(other.taken)
                self.seen = None if other.seen is None else _copied(other.seen)
                self.charge = None if other.charge is None else other.charge.clone()
            self.read_as, self.idle_reason, self.depth = other.read_as, other.idle_reason, 0
            self.training = other.training
            self.strength, self.compiled = None, True  # compiled forwards do not measure it
        other.statistics = other.taken = other.seen = other.charge = None
        other.earlier = ()


def _copied(statistics: Statistics) -> Statistics:
    table, count, ready = statistics.table.clone(), statistics.count.clone(), statistics.ready
    mask = None if statistics.mask is None else statistics.mask.clone()
    return Statistics(table, count, ready and ready._replace(loss=ready.loss.clone()), mask=mask)


class _Own(threading.local):
    def __init__(self) -> None:
        self.held = Held()  # runs once per thread


class Forwards:
    """One `Held` per thread.

    A compiled graph cannot tell threads apart, so compiled forwards write to one `Held` that is
    shared. The thread that asks next moves it into its own.

    Attributes:
        regions: the checkpointed regions in which training forwards ran.
    """

    def __init__(self) -> None:
        self.regions = Regions()
        self.compiled = Held()
        self.last = Held()  # the one written to last, in any thread
        self._own = _Own()

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies and pickles start empty."""
        return Forwards, ()

    def write(self) -> Held:
        """Where a forward leaves its results."""
        self.last = self.compiled if torch.compiler.is_compiling() else self.read()
        return self.last

    def read(self) -> Held:
        """What this thread's last forward left."""
        if torch.compiler.is_compiling():
            return self.last
        own = self._own.held
        if self.last is self.compiled:
            own.move_from(self.compiled)
            self.last = own
        return own


def transform_depth() -> int:
    """How many of them are active."""
    if not transforms_active():
        return 0
    return torch._C._functorch.get_dynamic_layer_stack_depth() + forward_ad._current_level + 1
