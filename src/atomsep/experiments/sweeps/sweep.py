"""Many runs in parallel processes: finished ones are skipped, and a failure stops no other.

Each process (see `worker`) trains one trial after another, so that it imports its libraries once.
If it dies, its trial has failed, and another process takes its place. Every trial is a run on disk,
so that the same call continues a sweep that was stopped.

How many trials run at a time is a given number, or decided by cores and memory: the first trial
runs alone, and when its memory is known, others follow as long as they fit (see `memory`). If
memory runs out all the same, the trial is put back and tried again with fewer beside it. One that
fails alone says nothing about the others, which run side by side again. If the server of NVIDIA
MPS ends, because a process that it served was killed, every worker is replaced and tries again.
"""

from __future__ import annotations

import selectors
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from atomsep.experiments.errors import ExperimentError, unknown
from atomsep.experiments.files import writing
from atomsep.experiments.machine import Machine
from atomsep.experiments.runs import RunKey
from atomsep.experiments.sweeps.ledger import Ledger, OnEvent, SweepReport, check_places
from atomsep.experiments.sweeps.memory import IDLE, Room, cores, free_memory, measure_host
from atomsep.experiments.sweeps.processes import WorkerProcess, count_gpus

if TYPE_CHECKING:
    from atomsep.experiments.sweeps.on_ray import RaySweep

GPU_MOST = 40
"""Runs per GPU, unless asked for more; NVIDIA MPS serves at most 48 processes."""


def run_sweep(
    trials: Iterable[RunKey],
    root: Path,
    machine: Machine | None = None,
    jobs: int | None = 1,
    on_event: OnEvent = lambda event: None,
    executor: str = "local",
) -> SweepReport:
    """Train every unfinished trial. Ctrl-C stops all with a checkpoint and returns.

    Args:
        trials: the runs; duplicates are trained once.
        root: the folder of all runs.
        machine: where to run.
        jobs: number of runs at a time; None: as many as cores and memory allow.
        on_event: is called with every event, in the calling thread.
        executor: "local" for processes on this machine, "ray" for those of a Ray cluster.

    Returns:
        The results, the failures, and the trials left if it was stopped.

    Raises:
        ExperimentError: no worker can be started, or `machine` has several devices.
    """
    keys = list(trials)
    number = len({key.folder(root) for key in keys})  # with those finished: a rerun plans the same
    with open_sweep(executor, root, machine or Machine(), jobs, number) as sweep:
        return sweep.run(keys, on_event)


def open_sweep(
    executor: str, root: Path, machine: Machine, jobs: int | None, trials: int | None = None
) -> Sweep | RaySweep:
    """A sweep on this machine, or on a Ray cluster.

    Raises:
        ExperimentError: there is no such executor, or it cannot be used.
    """
    if executor == "local":
        return Sweep(root, machine, jobs, trials)
    if executor != "ray":
        raise unknown("executor", executor, ("local", "ray"))
    from atomsep.experiments.sweeps.on_ray import RaySweep

    return RaySweep(root, machine, jobs)


class Sweep:
    """Worker processes, and the trials that they are given. They end with the `with` block.

    Args:
        root: the folder of all runs.
        machine: where to run.
        jobs: number of runs at a time; None: as many as cores and memory allow.
        trials: number of all trials, if it is known: fewer than cores get several threads each.

    Raises:
        ExperimentError: `jobs` is below 1, or `machine` has several devices.
    """

    def __init__(
        self, root: Path, machine: Machine, jobs: int | None, trials: int | None = None
    ) -> None:
        check_places(jobs, machine)
        self.root, self.machine, self.asked, self.trials = root, machine, jobs, trials
        self.gpus: list[Room] = []
        self.workers: list[WorkerProcess] = []
        self.selector = selectors.DefaultSelector()
        self.downloaded: set[str] = set()
        self.stopping, self.unusable = False, ""
        self.startup = self.pace = 0.0  # seconds until a worker is ready, and per trial

    def __enter__(self) -> Sweep:
        return self

    def __exit__(self, *error: object) -> None:
        for worker in self.workers:
            self._dismiss(worker)
        for worker in self.workers:
            worker.end()
        self.selector.close()

    def run(self, trials: Iterable[RunKey], on_event: OnEvent = lambda event: None) -> SweepReport:
        """Train every unfinished trial, as `run_sweep` does. It may be called more than once."""
        with writing(self.root):
            self.root.mkdir(parents=True, exist_ok=True)
        self.ledger = Ledger({key.folder(self.root): key for key in trials}, self.root, on_event)
        self.ledger.skip_finished()
        waiting = self.ledger.waiting
        try:
            if waiting:
                self._make_room()
                self._hire_more()
            while self.workers and (waiting or self._training()):
                self._hire_more()
                for worker in self.workers:
                    if waiting and worker.free:
                        self._give(worker)
                self._wait()
        except KeyboardInterrupt:
            self._stop()
        if waiting and not self.stopping:
            raise ExperimentError(f"no worker can be started: {self.unusable}")
        return self.ledger.report()

    def _training(self) -> list[WorkerProcess]:
        return [worker for worker in self.workers if worker.key is not None]

    def _rooms(self, worker: WorkerProcess) -> list[tuple[str, Room, list[WorkerProcess]]]:
        """The host's memory and that of the worker's GPU, each with the workers that train in it.

        Without a GPU the second is never measured, and only its limit counts.
        """
        gpu, training = worker.number % len(self.gpus), self._training()
        on_gpu = [other for other in training if other.number % len(self.gpus) == gpu]
        return [("host", self.host, training), ("cuda", self.gpus[gpu], on_gpu)]

    def _make_room(self) -> None:
        """Find out how many trials may run at a time. With a GPU, its driver keeps a core busy."""
        if self.gpus:  # by an earlier call
            return
        gpus = count_gpus(self.machine.device)
        most = min(cores() - 1, GPU_MOST * gpus) if gpus else cores()
        most = min(most, self.trials or most)
        self.jobs, self.has_gpu = self.asked or max(1, most), gpus > 0
        self.numbers = list(range(self.jobs))
        auto = self.asked is None
        self.host = Room(self.jobs, measured=auto and measure_host() is not None)
        self.gpus = [Room(self.jobs, measured=auto and gpus > 0) for _ in range(max(1, gpus))]

    def _hire_more(self) -> None:
        """Start workers for the trials that may run at a time."""
        wanted = len(self.ledger.waiting) + len(self._training())
        while self.numbers and len(self.workers) < wanted and self._is_worth_hiring():
            self._hire(self.numbers.pop(0))

    def _is_worth_hiring(self) -> bool:
        """Whether there is memory for another worker, and it will save time.

        To import its libraries takes a worker several seconds of a core. Without a GPU that must
        pay: the trials have to last longer than twice that time.
        """
        if self.asked is not None or not self.workers:
            return True
        starting, free = [each for each in self.workers if not each.ready], free_memory()
        if free is not None and free < IDLE * (len(starting) + 1):
            return False
        left = self.pace * len(self.ledger.waiting) / len(self.workers)
        return self.has_gpu or left > 2 * self.startup

    def _hire(self, number: int) -> None:
        worker = WorkerProcess(number, self.jobs, self.machine.device)
        self.workers.append(worker)
        self.selector.register(worker.answers, selectors.EVENT_READ, worker)

    def _give(self, worker: WorkerProcess) -> None:
        """Send the next trial, if it fits beside the others."""
        rooms = self._rooms(worker)
        if not all(room.fits(len(sharing)) for _, room, sharing in rooms):
            return
        name = self.ledger.waiting[0].experiment
        busy = {other.key.experiment for other in self.workers if other.key is not None}
        if self.machine.download and name in busy - self.downloaded:
            return  # one trial downloads the data; the others wait until it trains
        worker.give(self.ledger.waiting.popleft(), self.root, self.machine)
        for _, room, _ in rooms:
            room.enter(worker.number)
        *_, sharing = rooms[-1]
        worker.beside = len(sharing)
        for other in sharing:
            other.beside = max(other.beside, len(sharing))

    def _dismiss(self, worker: WorkerProcess) -> None:
        worker.dismiss()
        if not worker.ready:  # it still imports its libraries: nothing is lost
            worker.process.kill()

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
            worker.ready, self.startup = True, worker.seconds()
            return
        if "memory" in message:
            memory, evaluated = message["memory"], message["evaluated"]
            for kind, room, sharing in self._rooms(worker):
                alone = all(other is worker for other in sharing)
                room.learn(worker.number, memory.get(kind), evaluated=evaluated, alone=alone)
            return
        key = worker.key
        assert key is not None
        if "total" in message:
            self.downloaded.add(key.experiment)
            share = message["done"] / max(message["total"], 1)
            self.pace = worker.seconds() / share if share else self.pace
            self.ledger.progress(key, share)
            return
        worker.key = None
        if "finished" in message:
            self.ledger.finish(key)
        elif "crowded" in message:
            self._put_back(worker, key, message["crowded"])
        elif "lost" in message:
            self.ledger.lose(key, message["lost"])
            for each in self.workers:
                if each.free:  # this one, and others that the server served
                    each.dismiss()
        elif "failed" in message:
            self.ledger.fail(key, message["failed"])
        elif self.stopping:
            self.ledger.leave("stopped", key)
        else:
            self.ledger.fail(key, f"a signal ended it: {message['stopped']}")

    def _put_back(self, worker: WorkerProcess, key: RunKey, reason: str) -> None:
        """Memory ran out: try again with fewer trials beside this one, or fail if it was alone."""
        if worker.beside:
            self._rooms(worker)[-1][1].ran_out(worker.beside)
            self.ledger.put_back(key)
        else:
            for _, room, _ in self._rooms(worker):
                room.recover()
            self.ledger.fail(key, reason)

    def _remove(self, worker: WorkerProcess) -> None:
        """A worker has ended, because it was told to or in the middle of its trial."""
        self.selector.unregister(worker.answers)
        self.workers.remove(worker)
        for room in (self.host, *self.gpus):
            room.forget(worker.number)
        reason, key = worker.end(), worker.key
        if self.stopping:
            return
        if not worker.ready:
            self.unusable = reason
            return
        self.numbers.append(worker.number)
        if key is not None:
            self.ledger.fail(key, reason)
        self._hire_more()

    def _stop(self) -> None:
        """Let the workers write checkpoints; a second Ctrl-C kills them."""
        self.stopping = True
        try:
            for worker in self.workers:
                self._dismiss(worker)
                if worker.key is not None:
                    self.ledger.tell("stopping", worker.key)
            while self.workers:
                self._wait()
        except KeyboardInterrupt:
            for worker in self.workers:
                worker.process.kill()
