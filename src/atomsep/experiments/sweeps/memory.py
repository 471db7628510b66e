"""Memory that the trials of a sweep share: what one of them takes, and whether another fits.

Workers measure (`measure`), because only they have a context on the GPU; the sweep keeps the books
(`Room`), one for the host's memory and one for each GPU.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from pathlib import Path

from atomsep.experiments.errors import causes

Measured = tuple[int, int, int]
"""Bytes that a process has taken at most, that it holds, and that are free beside it."""

SHARE = 0.9
"""Share of the memory that trials may fill; half of it until one of them has been evaluated."""

CONTEXT = 3 * 2**28
"""Bytes on the GPU beside PyTorch's own: the context, and the kernels of CUDA's libraries."""

IDLE = 2**30
"""Bytes of the host that suffice for a worker that has only imported its libraries."""

ERRORS = ("out of memory", "allocate memory", "not enough memory", "ALLOC_FAILED")
"""Words in the errors of allocators: PyTorch's, CUDA's, cuBLAS's and cuDNN's, and the system's."""


@dataclass
class Room:
    """The memory of the host or of one GPU, and the trials in it.

    Attributes:
        limit: trials at a time, at most.
        measured: whether memory decides too, or the limit alone.
        need: the most that a trial has taken.
        have: what all trials can have together, measured while one ran alone.
        free: what was free when a worker last measured it.
        held: what each worker held when it last measured.
        entered: workers with a trial that they have not measured yet.
    """

    limit: int
    measured: bool
    need: int = 0
    have: int = 0
    free: int = 0
    held: dict[int, int] = field(default_factory=dict)
    entered: set[int] = field(default_factory=set)
    told: bool = False
    evaluated: bool = False

    def __post_init__(self) -> None:
        self.most = self.limit

    def enter(self, worker: int) -> None:
        """Take note of a trial that starts."""
        self.entered.add(worker)

    def learn(
        self, worker: int, measured: Measured | None, *, evaluated: bool, alone: bool
    ) -> None:
        """Take note of what a worker has measured, or could not measure."""
        self.told = self.told or measured is not None
        self.evaluated = self.evaluated or evaluated
        self.entered.discard(worker)
        if measured is not None:
            peak, self.held[worker], self.free = measured
            self.need = max(self.need, peak)
            if alone:  # otherwise what the others held may have changed since they measured it
                self.have = max(self.have, self.free + sum(self.held.values()))

    def forget(self, worker: int) -> None:
        """Take note of a worker's end."""
        self.held.pop(worker, None)
        self.entered.discard(worker)

    def ran_out(self, beside: int) -> None:
        """Lower the limit: a trial found no memory with so many others beside it."""
        self.limit = min(self.limit, beside)

    def recover(self) -> None:
        """Forget what a trial took that was too large even alone; the next one is measured."""
        self.limit, self.need = self.most, 0
        self.told = self.evaluated = False

    def fits(self, running: int) -> bool:
        """Whether one more trial fits beside those that run. One always may run alone."""
        if running == 0 or running >= self.limit or not self.measured:
            return running < self.limit
        share = SHARE if self.evaluated else SHARE / 2
        at_their_peaks = (running + 1) * self.need <= share * self.have
        return self.told and at_their_peaks and (len(self.entered) + 1) * self.need <= self.free


def measure() -> dict[str, Measured]:
    """What this process takes of the host's memory and, if it uses one, of the GPU's."""
    import torch

    host = measure_host()
    found = {} if host is None else {"host": host}
    if torch.cuda.is_initialized():
        free, _ = torch.cuda.mem_get_info()
        peak, held = torch.cuda.max_memory_reserved(), torch.cuda.memory_reserved()
        found["cuda"] = (peak + CONTEXT, held + CONTEXT, free)
    return found


def measure_host() -> Measured | None:
    """What this process takes of the host's memory; None where the system does not say."""
    held, free = _resident(), free_memory()
    return None if held is None or free is None else (held, held, free)


def is_out_of_memory(error: BaseException | None) -> bool:
    """Whether memory ran out, or an error that says so led to this one.

    Example:
        >>> is_out_of_memory(RuntimeError("CUDA error: out of memory"))
        True
        >>> is_out_of_memory(RuntimeError("CUDA error: an illegal memory access"))
        False
    """
    return any(
        isinstance(each, MemoryError) or any(words in str(each) for words in ERRORS)
        for each in causes(error)
    )


def cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):  # not on every system
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def free_memory() -> int | None:
    """Bytes of the host that processes can still take; None where the system does not say."""
    available = _entries(Path("/proc/meminfo")).get("MemAvailable")
    if available is None:
        return None
    free = [available * 1024]
    for folder, limit, used in CONTAINERS:
        try:
            most, taken = (int((folder / name).read_text()) for name in (limit, used))
        except (OSError, ValueError):  # no such container, or "max"
            continue
        files = _entries(folder / "memory.stat")  # can be dropped, but count as used
        taken -= files.get("inactive_file", 0) + files.get("active_file", 0)
        free.append(max(0, most - taken))
    return min(free)


CONTAINERS = (
    (Path("/sys/fs/cgroup"), "memory.max", "memory.current"),
    (Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes", "memory.usage_in_bytes"),
)
"""Where a container's limit and use are: in version 2 of control groups, and in version 1."""


def _resident() -> int | None:
    """Bytes of this process that it shares with no file, so that mapped data counts for nobody."""
    status = _entries(Path("/proc/self/status"))
    return (status["RssAnon"] + status["RssShmem"]) * 1024 if "RssAnon" in status else None


def _entries(path: Path) -> dict[str, int]:
    """The numbers in a file of the system, by name."""
    try:
        text = path.read_text()
    except OSError:
        return {}
    return {name: int(number) for name, number in re.findall(r"^(\w+):?\s+(\d+)", text, re.M)}
