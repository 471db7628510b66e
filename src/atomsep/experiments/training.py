"""The training loop: one for all experiments.

It asks the task for batches, seeds the global generators before each step, keeps the books and
writes checkpoints. Killed at any moment and called again, it goes on from the last checkpoint and
ends where an unbroken run ends, bit for bit on a CPU.
"""

from __future__ import annotations

import importlib.util
import json
import signal
import threading
import time
import types
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from atomsep.experiments.errors import ExperimentError
from atomsep.experiments.randomness import seed_step
from atomsep.experiments.runs import Run, RunKey, surroundings, write_whole
from atomsep.experiments.task import Context, Experiment, Task

if TYPE_CHECKING:
    from lightning.fabric import Fabric

READ_EVERY = 0.5
"""Seconds between two looks at the loss; each waits for the device."""


@dataclass(frozen=True)
class Machine:
    """Where and how to run. It does not decide the result, but for rounding."""

    device: str = "auto"
    devices: int = 1
    workers: int = 0
    data: Path = Path("data")
    download: bool = False
    checkpoint_seconds: float = 30.0
    tensorboard: bool = True


class Watcher(Protocol):
    """Who is told how a run goes on."""

    def started(self, key: RunKey, done: int, total: int) -> None:
        """Training begins or goes on, with so many of all steps done."""

    def ratio(self, ratio: float) -> None:
        """The method's loss over the task's, at the first step of a run."""

    def progressed(self, done: int, total: int, parts: Mapping[str, float], rate: float) -> None:
        """So many steps are done; means of the loss's parts, samples a second."""

    def evaluated(self, epoch: int, metrics: Mapping[str, float]) -> None:
        """Metrics after an epoch."""


class Silent:
    """A watcher that says nothing."""

    def started(self, key: RunKey, done: int, total: int) -> None:
        """Nothing."""

    def ratio(self, ratio: float) -> None:
        """Nothing."""

    def progressed(self, done: int, total: int, parts: Mapping[str, float], rate: float) -> None:
        """Nothing."""

    def evaluated(self, epoch: int, metrics: Mapping[str, float]) -> None:
        """Nothing."""


class StoppedError(Exception):
    """The run was asked to stop, and can go on from its checkpoint."""


class Meter:
    """Means of the loss's parts over an epoch, without waiting for the device."""

    def __init__(self) -> None:
        self.sums: dict[str, Tensor] = {}
        self.count = 0

    def add(self, parts: Mapping[str, Tensor]) -> None:
        """Count one step."""
        for name, value in parts.items():
            value = value.double()
            self.sums[name] = self.sums[name] + value if name in self.sums else value
        self.count += 1

    def means(self) -> dict[str, float]:
        """Mean of every part so far."""
        return {name: float(total) / self.count for name, total in self.sums.items()}

    def state(self) -> dict[str, Any]:
        """What a checkpoint needs."""
        return {"sums": self.sums, "count": self.count}

    def load(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint."""
        self.sums, self.count = state["sums"], state["count"]


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
        for batch in task.batches(self.epoch, self.step):
            seed_step(seed, "step", self.epoch, self.step)
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
            task = sum(abs(float(value)) for name, value in parts.items() if name != "method")
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
        if self.fabric.is_global_zero:
            write_whole(self.run.metrics, "".join(line + "\n" for line in self.lines))

    def _write_line(self, line: dict[str, Any], start: float, board: Any) -> None:
        for name, value in {**line, **line.get("metrics", {})}.items():
            if name != "metrics":
                board(name, value, self.epoch + 1)
        line["seconds"] = round(time.monotonic() - start, 3)
        self.lines.append(json.dumps(line))
        if self.fabric.is_global_zero:
            with open(self.run.metrics, "a", encoding="utf-8") as file:
                file.write(self.lines[-1] + "\n")

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


def make_fabric(machine: Machine, precision: str) -> Fabric:
    """Device, precision and processes.

    Raises:
        ExperimentError: a GPU was asked for, and there is none.
    """
    from lightning.fabric import Fabric

    device = machine.device
    if device not in ("auto", "cpu", "cuda", "mps"):
        raise ExperimentError(f"--device must be auto, cpu, cuda or mps, not {device!r}")
    have = torch.cuda.device_count()
    if device == "cuda" and have == 0:
        raise ExperimentError(
            "--device cuda was asked for, but torch sees no GPU; try --device cpu"
        )
    if device == "cuda" and machine.devices > have:
        raise ExperimentError(
            f"--devices {machine.devices} were asked for, but torch sees {have} of them"
        )
    fabric = Fabric(
        accelerator=device,
        devices=machine.devices,
        precision=precision,  # type: ignore[arg-type]
        strategy="ddp" if machine.devices > 1 else "auto",
    )
    if machine.devices > 1:
        fabric.launch()
    return fabric


@contextmanager
def interruptible() -> Iterator[threading.Event]:
    """Ctrl-C sets the event instead of breaking a step in two; a second one breaks it."""
    event = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield event
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def stop(number: int, frame: types.FrameType | None) -> None:
        event.set()
        for each, handler in before.items():
            signal.signal(each, handler)

    for number in before:
        signal.signal(number, stop)
    try:
        yield event
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _has_tensorboard() -> bool:
    return importlib.util.find_spec("tensorboard") is not None


@contextmanager
def _nothing() -> Iterator[None]:
    yield
