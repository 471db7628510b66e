"""The training loop: one for all experiments.

It asks the task for batches, seeds the global generators before each step, keeps the books and
writes checkpoints. Killed at any moment and called again, it goes on from the last checkpoint and
ends where an unbroken run ends, bit for bit on a CPU.
"""

from __future__ import annotations

import importlib.util
import json
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from atomsep.experiments.errors import ExperimentError
from atomsep.experiments.machine import Machine, make_fabric
from atomsep.experiments.progress import Meter, Silent, Watcher, interruptible
from atomsep.experiments.randomness import seed_step
from atomsep.experiments.runs import Run, RunKey, surroundings, write_whole
from atomsep.experiments.task import Context, Experiment, Task

if TYPE_CHECKING:
    from lightning.fabric import Fabric

READ_EVERY = 0.5
"""Seconds between two looks at the loss; each waits for the device."""


class StoppedError(Exception):
    """The run was asked to stop, and can go on from its checkpoint."""


def train(
    experiment: Experiment,
    key: RunKey,
    root: Path,
    machine: Machine | None = None,
    watcher: Watcher | None = None,
) -> dict[str, Any]:
    """Train one run to its end, or read its result if it is finished.

    Args:
        experiment: the row of the paper.
        key: method, seed, settings.
        root: the folder of all runs.
        machine: where to run.
        watcher: is told how it goes on.

    Returns:
        The result, as it is in `result.json`.

    Raises:
        ExperimentError: the run cannot start or go on.
        StoppedError: it was interrupted, and its checkpoint is on disk.
    """
    machine, watcher = machine or Machine(), watcher or Silent()
    run = Run(key.folder(root))
    done = run.read_result()
    if done is not None:
        return done
    fabric = make_fabric(machine, key.settings.precision)
    devices = [fabric.device] if fabric.device.type == "cuda" else []
    with (
        run.locked() if fabric.is_global_zero else _nothing(),
        torch.random.fork_rng(devices=devices),
        _same_threads(),
    ):
        seed_step(key.seed, "initial weights")
        task = experiment.build(
            Context(
                *(key.settings, key.method, key.seed, fabric, machine.data),
                download=machine.download,
                tiny=key.tiny,
                validation=key.validation,
                workers=machine.workers,
                folder=run.folder,
            )
        )
        about = {**key.record(), **surroundings()}
        if fabric.is_global_zero:
            write_whole(run.config, json.dumps(about, indent=2) + "\n")
        return Loop(task, key, run, fabric, machine, watcher, about).run_to_end()


class Loop:
    """One run under way."""

    def __init__(
        self,
        task: Task,
        key: RunKey,
        run: Run,
        fabric: Fabric,
        machine: Machine,
        watcher: Watcher,
        about: dict[str, Any],
    ) -> None:
        self.task, self.key, self.run, self.fabric = task, key, run, fabric
        self.machine, self.watcher, self.about = machine, watcher, about
        self.epoch, self.step, self.seconds = 0, 0, 0.0
        self.meter = Meter()
        self.lines: list[str] = []
        self.total = key.settings.epochs * task.steps
        self.since = time.monotonic()
        if task.steps == 0:
            raise ExperimentError(
                f"a batch of {key.settings.batch} holds fewer than two of the training samples a "
                f"process; there is nothing to train on"
            )

    def run_to_end(self) -> dict[str, Any]:
        """Train, evaluate, write the result."""
        self._go_on()
        self.watcher.started(self.key, self._done(), self.total)
        settings, start = self.key.settings, time.monotonic() - self.seconds
        self.saved = self.since = time.monotonic()
        with interruptible() as stop, self._board() as board:
            while self.epoch < settings.epochs:
                self._train_epoch(start, stop)
                line: dict[str, Any] = {"epoch": self.epoch + 1, **self.meter.means()}
                if self._is_evaluated(self.epoch + 1):
                    metrics = self.task.evaluate()
                    self.watcher.evaluated(self.epoch + 1, metrics)
                    line["metrics"] = metrics
                self._write_line(line, start, board)
                self.epoch, self.step, self.meter = self.epoch + 1, 0, Meter()
                self._checkpoint_if_due(start)
        return self._finish(start)

    def _is_evaluated(self, epoch: int) -> bool:
        settings = self.key.settings
        every, last = settings.evaluate_every, settings.epochs - settings.average_last
        return epoch > last or (every > 0 and epoch % every == 0)

    def _train_epoch(self, start: float, stop: threading.Event) -> None:
        task, seed, looked = self.task, self.key.seed, time.monotonic()
        seen, since = 0, looked
        # Data-parallel, no two processes may drop the same features.
        rank = (self.fabric.global_rank,) if self.fabric.world_size > 1 else ()
        for batch in task.batches(self.epoch, self.step):
            seed_step(seed, "step", self.epoch, self.step, *rank)
            parts = task.step(batch, self._done() / self.total)
            self.meter.add(parts)
            if self._done() == 0:
                self._report_ratio(parts)
            self.step += 1
            seen += self.key.settings.batch
            now = time.monotonic()
            if now - looked >= READ_EVERY:
                self._look(seen / (now - since))
                looked = now
            if stop.is_set():
                self._checkpoint(start)
                raise StoppedError(f"stopped in epoch {self.epoch + 1}; it goes on from there")
            self._checkpoint_if_due(start)
        if self.step < task.steps:
            raise ExperimentError(
                f"epoch {self.epoch + 1} gave {self.step} batches, but {task.steps} were promised"
            )
        self._look(seen / max(time.monotonic() - since, 1e-9))

    def _look(self, rate: float) -> None:
        means = self.meter.means()
        self.watcher.progressed(self._done(), self.total, means, rate)
        bad = [name for name, value in means.items() if value != value]
        if bad:
            raise ExperimentError(
                f"the {bad[0]} loss is not a number in epoch {self.epoch + 1}; lower the learning "
                f"rate or the weight"
            )

    def _report_ratio(self, parts: Mapping[str, Tensor]) -> None:
        if "method" in parts:
            beside = [self.task.beside] if self.task.beside else parts.keys() - {"method"}
            task = sum(abs(float(parts[name])) for name in beside)
            ratio = abs(float(parts["method"])) / max(task, 1e-12)
            self.about["loss_ratio"] = ratio
            self.watcher.ratio(ratio)

    def _done(self) -> int:
        return self.epoch * self.task.steps + self.step

    def _checkpoint_if_due(self, start: float) -> None:
        if time.monotonic() - self.saved >= self.machine.checkpoint_seconds:
            self._checkpoint(start)

    def _parts(self) -> dict[str, Any]:
        """What a checkpoint holds: the task's parts, and the loss scale of half precision."""
        scaler = getattr(self.fabric.strategy.precision, "scaler", None)
        return {**self.task.parts(), **({} if scaler is None else {"scaler": scaler})}

    def _checkpoint(self, start: float) -> None:
        """Save everything that the run needs to go on from here."""
        state = {name: part.state_dict() for name, part in self._parts().items()}
        if self.fabric.is_global_zero:
            self.run.save_checkpoint(
                {
                    "parts": state,
                    "epoch": self.epoch,
                    "step": self.step,
                    "meter": self.meter.state(),
                    "lines": self.lines,
                    "seconds": time.monotonic() - start,
                    "loss_ratio": self.about.get("loss_ratio"),
                    "unreadable": sorted(self.task.unreadable),
                }
            )
        self.saved = time.monotonic()

    def _go_on(self) -> None:
        """Take up the last checkpoint, if there is one; forget lines of metrics after it."""
        state = self.run.load_checkpoint(self.fabric.device)
        if state is not None:
            for name, part in self._parts().items():
                part.load_state_dict(state["parts"][name])
            self.epoch, self.step = state["epoch"], state["step"]
            self.meter.load(state["meter"])
            self.lines, self.seconds = state["lines"], state["seconds"]
            if state["loss_ratio"] is not None:
                self.about["loss_ratio"] = state["loss_ratio"]
            self.task.unreadable.update(state["unreadable"])
        self._write_lines()

    def _write_line(self, line: dict[str, Any], start: float, board: Any) -> None:
        for name, value in {**line, **line.get("metrics", {})}.items():
            if name != "metrics":
                board(name, value, self.epoch + 1)
        line["seconds"] = round(time.monotonic() - start, 3)
        self.lines.append(json.dumps(line))
        self._write_lines()

    def _write_lines(self) -> None:
        if self.fabric.is_global_zero:
            text = "".join(line + "\n" for line in self.lines)
            write_whole(self.run.metrics, text, durable=False)  # the checkpoint has them too

    @contextmanager
    def _board(self) -> Iterator[Any]:
        """A function that writes a number to TensorBoard, where that is installed."""
        if not (self.machine.tensorboard and self.fabric.is_global_zero and _has_tensorboard()):
            yield lambda name, value, epoch: None
            return
        from torch.utils.tensorboard import SummaryWriter

        folder = str(self.run.folder / "tensorboard")
        with SummaryWriter(folder, purge_step=self.epoch + 1) as writer:
            yield writer.add_scalar

    def _finish(self, start: float) -> dict[str, Any]:
        last = [json.loads(line) for line in self.lines[-self.key.settings.average_last :]]
        metrics = {
            name: round(sum(line["metrics"][name] for line in last) / len(last), 7)
            for name in last[-1]["metrics"]
        }
        files = self.task.finish() if self.fabric.is_global_zero else []
        result = {
            **self.about,
            "metrics": metrics,
            "last_epoch": last[-1],
            "seconds": round(time.monotonic() - start, 3),
            "unreadable": sorted(self.task.unreadable),
            "files": [file.name for file in files],
        }
        if self.fabric.is_global_zero:
            self.run.save_model(self.task.parts())
            write_whole(self.run.result, json.dumps(result, indent=2) + "\n")
            self.run.checkpoint.unlink(missing_ok=True)
        return result


def _has_tensorboard() -> bool:
    return importlib.util.find_spec("tensorboard") is not None


@contextmanager
def _same_threads() -> Iterator[None]:
    """As many threads at the end as before, whatever the task chose."""
    threads = torch.get_num_threads()
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@contextmanager
def _nothing() -> Iterator[None]:
    yield
