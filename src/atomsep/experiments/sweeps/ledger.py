"""The trials of a sweep: which wait, run and have ended; told as events and a report."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from atomsep.experiments.errors import ExperimentError
from atomsep.experiments.machine import Machine
from atomsep.experiments.runs import Run, RunKey

RETRIES = 3
"""How often a trial is started again that lost the server of MPS, or its machine in a cluster."""


def check_places(jobs: int | None, machine: Machine) -> None:
    """Whether a sweep can train so many runs at a time there.

    Raises:
        ExperimentError: `jobs` is below 1, or `machine` has several devices.
    """
    if jobs is not None and jobs < 1:
        raise ExperimentError(f"--jobs must be at least 1, not {jobs}")
    if machine.devices > 1:
        raise ExperimentError(
            f"a sweep trains each run on one device, not on {machine.devices}; --jobs uses several"
        )


@dataclass(frozen=True)
class Event:
    """Something happened to a trial.

    Attributes:
        kind: "skipped" (finished before), "started", "progressed", "finished", "failed" or
            "returned" (memory ran out beside others, or the server of MPS ended; it waits until
            it can be tried again); after Ctrl-C "stopping" (it writes a checkpoint) and "stopped".
        key: the trial.
        done: number of trials that ended, plus the shares of those in training.
        failed: number of trials that failed.
        total: number of trials.
        running: number of trials in training.
        unstarted: why a failed trial could not even start; empty for one that was in training.
    """

    kind: str
    key: RunKey
    done: float
    failed: int
    total: int
    running: int = 0
    unstarted: str = ""


@dataclass(frozen=True)
class Failure:
    """A trial that failed: the first line of its error, and the file with the rest."""

    key: RunKey
    reason: str
    log: Path


@dataclass
class SweepReport:
    """How a sweep ended.

    Attributes:
        results: results of all finished trials, in the order of the trials.
        skipped: number of trials that were finished before.
        failed: the trials that failed.
        left: the trials that are not finished because the sweep was stopped.
    """

    results: list[dict[str, Any]] = field(default_factory=list)
    skipped: int = 0
    failed: list[Failure] = field(default_factory=list)
    left: list[RunKey] = field(default_factory=list)

    @property
    def stopped(self) -> bool:
        """Whether the sweep was interrupted."""
        return bool(self.left)


OnEvent = Callable[[Event], None]


@dataclass
class Ledger:
    """Keeps the books of one sweep.

    Attributes:
        trials: all trials, by their folders.
        root: the folder of all runs.
        on_event: is called with every event.
        waiting: the trials that no worker has.
        shares: shares that are done of the trials in training, by folder.
        lost: how often trials lost the server of MPS, by folder.
    """

    trials: dict[Path, RunKey]
    root: Path
    on_event: OnEvent
    waiting: deque[RunKey] = field(default_factory=deque)
    shares: dict[Path, float] = field(default_factory=dict)
    failed: dict[Path, Failure] = field(default_factory=dict)
    lost: Counter[Path] = field(default_factory=Counter)
    ended: int = 0
    skipped: int = 0

    def skip_finished(self) -> None:
        """Let all trials wait, except those that are finished or cannot be read."""
        for folder, key in self.trials.items():
            try:
                result = Run(folder).read_result()
            except ExperimentError as error:
                self.fail(key, str(error))
                continue
            if result is None:
                self.waiting.append(key)
            else:
                self.skipped += 1
                self.ended += 1
                self.tell("skipped", key)

    def progress(self, key: RunKey, share: float) -> None:
        """A share of a trial is done."""
        folder = key.folder(self.root)
        kind = "progressed" if folder in self.shares else "started"
        self.shares[folder] = share
        self.tell(kind, key)

    def finish(self, key: RunKey) -> None:
        """A trial is finished."""
        self.ended += 1
        self.leave("finished", key)

    def fail(self, key: RunKey, reason: str) -> None:
        """A trial has failed."""
        folder = key.folder(self.root)
        self.failed[folder] = Failure(key, reason, folder / "log.txt")
        self.ended += 1
        self.leave("failed", key, "" if folder in self.shares else reason)

    def put_back(self, key: RunKey) -> None:
        """A trial waits again, as the first."""
        self.waiting.appendleft(key)
        self.leave("returned", key)

    def lose(self, key: RunKey, reason: str) -> None:
        """A trial has lost the server of MPS: it waits again, or has failed if that is usual."""
        self.lost[key.folder(self.root)] += 1
        if self.lost[key.folder(self.root)] > RETRIES:
            self.fail(key, reason)
        else:
            self.put_back(key)

    def leave(self, kind: str, key: RunKey, unstarted: str = "") -> None:
        """A trial is not in training any more."""
        self.shares.pop(key.folder(self.root), None)
        self.tell(kind, key, unstarted)

    def tell(self, kind: str, key: RunKey, unstarted: str = "") -> None:
        """Call `on_event`."""
        done, running = self.ended + sum(self.shares.values()), len(self.shares)
        counts = done, len(self.failed), len(self.trials), running
        self.on_event(Event(kind, key, *counts, unstarted))

    def report(self) -> SweepReport:
        """How the sweep has ended."""
        report = SweepReport(skipped=self.skipped, failed=list(self.failed.values()))
        for folder, key in self.trials.items():
            if folder not in self.failed:
                result = Run(folder).read_result()
                if result is None:
                    report.left.append(key)
                else:
                    report.results.append(result)
        return report
