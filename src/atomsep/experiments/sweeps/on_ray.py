"""A sweep on the machines of a Ray cluster.

Ray finds a place for each trial, and starts a trial again whose process or machine has died; it
then continues from its checkpoint. The folders of runs and of data must be the same for all
machines. What remains to do here is to hand out the trials and to keep the books.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from atomsep.experiments.entry_points import IMPORTED
from atomsep.experiments.errors import ExperimentError
from atomsep.experiments.files import writing
from atomsep.experiments.machine import Machine
from atomsep.experiments.runs import RunKey
from atomsep.experiments.sweeps.ledger import (
    RETRIES,
    Ledger,
    OnEvent,
    SweepReport,
    check_places,
)

LOOK_EVERY = 1.0
"""Seconds after which the number of trials at a time follows a cluster that grows or shrinks."""


class RaySweep:
    """Trials on a Ray cluster: the one of `RAY_ADDRESS`, one on this machine, or one started here.

    It has the interface of `Sweep`.

    Args:
        root: the folder of all runs, which all machines share.
        machine: how to run.
        jobs: number of runs at a time; None: one per GPU of the cluster, or per core without any.

    Raises:
        ExperimentError: Ray is not installed, `jobs` is below 1, or `machine` has several devices.
    """

    def __init__(self, root: Path, machine: Machine, jobs: int | None) -> None:
        try:
            import ray
        except ImportError:
            raise ExperimentError('--executor ray needs Ray: pip install "atomsep[ray]"') from None
        check_places(jobs, machine)
        self.ray, self.root, self.machine, self.jobs = ray, root, machine, jobs
        self.started = not ray.is_initialized()

    def __enter__(self) -> RaySweep:
        if self.started:
            self.ray.init(log_to_driver=False, logging_level=logging.ERROR)
        return self

    def __exit__(self, *error: object) -> None:
        if self.started:
            self.ray.shutdown()

    def run(self, trials: Iterable[RunKey], on_event: OnEvent = lambda event: None) -> SweepReport:
        """Train every unfinished trial, as `run_sweep` does. It may be called more than once."""
        with writing(self.root):
            self.root.mkdir(parents=True, exist_ok=True)
        ledger = Ledger({key.folder(self.root): key for key in trials}, self.root, on_event)
        ledger.skip_finished()
        running: dict[Any, RunKey] = {}
        try:
            while ledger.waiting or running:
                # One trial downloads the data; the others wait until it is there.
                alone = self.machine.download and ledger.ended == ledger.skipped
                while ledger.waiting and len(running) < (1 if alone else self._places()):
                    key = ledger.waiting.popleft()
                    running[self._give(key)] = key
                    ledger.progress(key, 0.0)
                ended, _ = self.ray.wait(list(running), timeout=LOOK_EVERY)
                for reference in ended:
                    self._book(reference, running.pop(reference), ledger, len(running))
        except KeyboardInterrupt:
            self._stop(running, ledger)
        return ledger.report()

    def _gpus(self) -> float:
        if self.machine.device not in ("auto", "cuda"):
            return 0.0
        return float(self.ray.cluster_resources().get("GPU", 0))

    def _places(self) -> int:
        """How many trials may run at a time."""
        cores = self.ray.cluster_resources().get("CPU", 1)
        return self.jobs or max(1, int(self._gpus() or cores))

    def _give(self, key: RunKey) -> Any:
        """Submit a trial. Those at a time share the GPUs."""
        trial = {
            "imports": IMPORTED,
            "key": key.record(),
            "root": str(self.root.resolve()),
            "machine": {
                **dataclasses.asdict(self.machine), "data": str(self.machine.data.resolve())
            },
        }  # fmt: skip
        share = min(1.0, self._gpus() / self._places())
        task = self.ray.remote(num_cpus=1, num_gpus=share, max_retries=RETRIES)(_work)
        return task.remote(json.dumps(trial), os.getcwd())

    def _book(self, reference: Any, key: RunKey, ledger: Ledger, beside: int) -> None:
        try:
            last = self.ray.get(reference)
        except self.ray.exceptions.RayError as error:
            first = str(error).strip().partition("\n")[0]
            ledger.fail(key, f"{type(error).__name__}: {first}")
            return
        if "finished" in last:
            ledger.finish(key)
        elif "crowded" in last and beside:  # memory ran out: try again with fewer beside it
            self.jobs = beside
            ledger.put_back(key)
        else:
            [reason] = last.values()
            ledger.fail(key, f"a signal ended it: {reason}" if "stopped" in last else reason)

    def _stop(self, running: dict[Any, RunKey], ledger: Ledger) -> None:
        """Let the trials write checkpoints; a second Ctrl-C leaves them to Ray."""
        for reference, key in running.items():
            self.ray.cancel(reference)
            ledger.tell("stopping", key)
        if running:
            self.ray.wait(list(running), num_returns=len(running), fetch_local=False)
        for key in running.values():
            ledger.leave("stopped", key)


def _work(line: str, folder: str) -> dict[str, Any]:
    """Train a trial in a process of Ray; returns the worker's last answer."""
    import sys

    from atomsep.experiments.sweeps.worker import work

    if folder not in sys.path:  # as in the process of the sweep, for modules of the user
        sys.path.insert(0, folder)
    return work(line, lambda message: None)
