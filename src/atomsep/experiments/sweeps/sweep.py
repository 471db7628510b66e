"""Many runs in parallel processes: finished ones are skipped, and a failure stops no other.

Each process (see `worker`) trains one trial after another, so that it imports its libraries once.
If it dies, its trial has failed, and another process takes its place. Every trial is a run on disk,
so that the same call continues a sweep that was stopped.
"""

from __future__ import annotations

import selectors
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from atomsep.experiments.errors import ExperimentError
from atomsep.experiments.files import writing
from atomsep.experiments.machine import Machine
from atomsep.experiments.runs import Run, RunKey
from atomsep.experiments.sweeps.processes import WorkerProcess


@dataclass(frozen=True)
class Event:
    """Something happened to a trial.

    Attributes:
        kind: "skipped" (finished before), "started", "progressed", "finished" or "failed"; after
            Ctrl-C "stopping" (it writes a checkpoint) and "stopped".
        key: the trial.
        done: number of trials that ended, plus the shares of those in training.
        failed: number of trials that failed.
        total: number of trials.
    """

    kind: str
    key: RunKey
    done: float
    failed: int
    total: int


@dataclass(frozen=True)
class Failure:
    """A trial that failed: the last line of its error, and the file with the rest."""

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


def run_sweep(
    trials: Iterable[RunKey],
    root: Path,
    machine: Machine | None = None,
    jobs: int = 1,
    on_event: OnEvent = lambda event: None,
) -> SweepReport:
    """Train every unfinished trial. Ctrl-C stops all with a checkpoint and returns.

    Args:
        trials: the runs; duplicates are trained once.
        root: the folder of all runs.
        machine: where to run.
        jobs: number of runs at a time.
        on_event: is called with every event, in the calling thread.

    Returns:
        The results, the failures, and the trials left if it was stopped.

    Raises:
        ExperimentError: no worker can be started, or `machine` has several devices.
    """
    machine = machine or Machine()
    if jobs < 1:
        raise ExperimentError(f"--jobs must be at least 1, not {jobs}")
    if machine.devices > 1:
        raise ExperimentError(
            f"a sweep trains each run on one device, not on {machine.devices}; --jobs uses several"
        )
    with writing(root):
        root.mkdir(parents=True, exist_ok=True)
    return Sweep({key.folder(root): key for key in trials}, root, machine, jobs, on_event).run()


@dataclass
class Sweep:
    """The state of a sweep: gives trials to workers and collects their answers."""

    trials: dict[Path, RunKey]
    root: Path
    machine: Machine
    jobs: int
    on_event: OnEvent
    waiting: deque[RunKey] = field(default_factory=deque)
    workers: list[WorkerProcess] = field(default_factory=list)
    selector: selectors.BaseSelector = field(default_factory=selectors.DefaultSelector)
    failed: dict[Path, Failure] = field(default_factory=dict)
    ended: int = 0
    skipped: int = 0
    stopping: bool = False
    unusable: str = ""
    downloaded: set[str] = field(default_factory=set)

    def run(self) -> SweepReport:
        """Train all trials."""
        self._skip_finished()
        self.jobs = min(self.jobs, len(self.waiting))
        try:
            for number in range(self.jobs):
                self._hire(number)
            while self.workers:
                for worker in self.workers:
                    if worker.ready and worker.key is None:
                        self._give(worker)
                self._wait()
        except KeyboardInterrupt:
            self._stop()
        finally:
            for worker in self.workers:
                worker.end()
            self.selector.close()
        if self.waiting and not self.stopping:
            raise ExperimentError(f"no worker can be started: {self.unusable}")
        return self._report()

    def _skip_finished(self) -> None:
        for folder, key in self.trials.items():
            try:
                result = Run(folder).read_result()
            except ExperimentError as error:
                self._fail(key, str(error))
                continue
            if result is None:
                self.waiting.append(key)
            else:
                self.skipped += 1
                self.ended += 1
                self._tell("skipped", key)

    def _hire(self, number: int) -> None:
        worker = WorkerProcess(number, self.jobs, self.machine.device)
        self.workers.append(worker)
        self.selector.register(worker.answers, selectors.EVENT_READ, worker)

    def _give(self, worker: WorkerProcess) -> None:
        """Send the next trial, or the end if there is none."""
        if not self.waiting:
            worker.dismiss()
            return
        name = self.waiting[0].experiment
        if self.machine.download and name not in self.downloaded:
            training = {other.key.experiment for other in self.workers if other.key is not None}
            if name in training:
                return  # one trial downloads the data; the others wait until it trains
        worker.give(self.waiting.popleft(), self.root, self.machine)

    def _wait(self) -> None:
        """Wait for answers, and handle them."""
        for ready, _ in self.selector.select():
            worker: WorkerProcess = ready.data
            messages = worker.receive()
            if messages is None:
                self._remove(worker)
            else:
                for message in messages:
                    self._handle(worker, message)

    def _handle(self, worker: WorkerProcess, message: dict[str, Any]) -> None:
        if "ready" in message:
            worker.ready = True
            return
        key = worker.key
        assert key is not None
        if "total" in message:
            self.downloaded.add(key.experiment)
            kind = "started" if worker.share is None else "progressed"
            worker.share = message["done"] / max(message["total"], 1)
            self._tell(kind, key)
            return
        worker.key = worker.share = None
        if "finished" in message:
            self.ended += 1
            self._tell("finished", key)
        elif "failed" in message:
            self._fail(key, message["failed"])
        elif self.stopping:
            self._tell("stopped", key)
        else:
            self._fail(key, f"a signal ended it: {message['stopped']}")

    def _remove(self, worker: WorkerProcess) -> None:
        """A worker has ended, because it was told to or in the middle of its trial."""
        self.selector.unregister(worker.answers)
        self.workers.remove(worker)
        reason, key = worker.end(), worker.key
        if self.stopping:
            return
        if not worker.ready:
            self.unusable = reason
        elif key is not None:
            worker.key = worker.share = None
            self._fail(key, reason)
            if self.waiting:
                self._hire(worker.number)

    def _stop(self) -> None:
        """Let the workers write checkpoints; a second Ctrl-C kills them."""
        self.stopping = True
        try:
            for worker in self.workers:
                worker.dismiss()
                if worker.key is not None:
                    self._tell("stopping", worker.key)
            while self.workers:
                self._wait()
        except KeyboardInterrupt:
            for worker in self.workers:
                worker.process.kill()

    def _fail(self, key: RunKey, reason: str) -> None:
        folder = key.folder(self.root)
        self.failed[folder] = Failure(key, reason, folder / "log.txt")
        self.ended += 1
        self._tell("failed", key)

    def _tell(self, kind: str, key: RunKey) -> None:
        done = self.ended + sum(worker.share or 0.0 for worker in self.workers)
        self.on_event(Event(kind, key, done, len(self.failed), len(self.trials)))

    def _report(self) -> SweepReport:
        report = SweepReport(skipped=self.skipped, failed=list(self.failed.values()))
        for folder, key in self.trials.items():
            if folder not in self.failed:
                result = Run(folder).read_result()
                if result is None:
                    report.left.append(key)
                else:
                    report.results.append(result)
        return report
