"""The training loop, shared by all experiments.

It asks the task for batches, seeds the global generators before each step, averages the losses and
writes checkpoints. A run that was killed at any moment continues from its last checkpoint, and ends
as an uninterrupted one does, bit for bit on a CPU.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from atomsep.experiments.atoms_file import MOST, write_atoms
from atomsep.experiments.board import SHOWN, Board, has_tensorboard, tensorboard
from atomsep.experiments.distances import moments, record_distances
from atomsep.experiments.errors import ExperimentError, StoppedError
from atomsep.experiments.files import CONTINUES, write_state, write_text
from atomsep.experiments.machine import Machine
from atomsep.experiments.progress import READ_EVERY, Listener, Meter, interruptible
from atomsep.experiments.randomness import seed_step
from atomsep.experiments.runs import Run, RunKey
from atomsep.experiments.task import Task

if TYPE_CHECKING:
    from lightning.fabric import Fabric


@dataclass
class Loop:
    """The state of one run."""

    task: Task
    key: RunKey
    run: Run
    fabric: Fabric
    machine: Machine
    listener: Listener
    about: dict[str, Any]
    epoch: int = 0
    step: int = 0
    seconds: float = 0.0
    meter: Meter = field(default_factory=Meter)
    lines: list[str] = field(default_factory=list)

    def run_to_end(self) -> dict[str, Any]:
        """Train, evaluate, write the result."""
        if self.task.steps == 0:
            raise ExperimentError(
                f"a batch of {self.key.settings.batch} gives each process fewer than two training "
                f"samples; use a larger batch, fewer devices or more samples"
            )
        settings, steps = self.key.settings, self.task.steps
        self.total = settings.epochs * steps
        self.evaluations = set(settings.evaluation_points(steps))
        self.moments = {} if self.key.validation else moments(self.total)
        self.line_ends = self.evaluations | set(range(steps, self.total + 1, steps))
        self._continue()
        self.listener.started(self.key, self._done(), self.total)
        if len(self.evaluations) < settings.average_last:
            self.listener.few_evaluations(len(self.evaluations), settings.average_last)
        start = time.monotonic() - self.seconds
        self.saved = time.monotonic()
        with interruptible() as stop, self._board() as board:
            while self.epoch < settings.epochs:
                self._train_epoch(start, stop, board)
                self.epoch, self.step = self.epoch + 1, 0
        return self._finish(start)

    def _train_epoch(self, start: float, stop: threading.Event, board: Board) -> None:
        task, seed, read = self.task, self.key.seed, time.monotonic()
        seen, since = 0, read
        # With several processes, each must drop other features.
        rank = (self.fabric.global_rank,) if self.fabric.world_size > 1 else ()
        for batch in task.batches(self.epoch, self.step):
            self._record_distances()
            seed_step(seed, "step", self.epoch, self.step, *rank)
            first, ends = self._done() == 0, self._done() + 1 in self.line_ends
            if task.on_layer is not None:
                task.on_layer.watch(first or ends)
            self.meter.add(task.step(batch, self._done() / self.total))
            self.step += 1
            if first:
                self._report_strength(start, board)
            seen += self.key.settings.batch
            now = time.monotonic()
            if ends or now - read >= READ_EVERY:
                self._report_losses(seen / max(now - since, 1e-9))
                read = now
            if ends:  # before any checkpoint, so that each has the lines of its steps
                self._end_line(start, board)
                since += time.monotonic() - now  # evaluating is not training
            if stop.is_set():
                self._checkpoint(start)
                raise StoppedError(f"stopped in epoch {self.epoch + 1}, with a checkpoint")
            if time.monotonic() - self.saved >= self.machine.checkpoint_seconds:
                self._checkpoint(start)
        if self.step < task.steps:
            raise ExperimentError(
                f"epoch {self.epoch + 1} had {self.step} batches, not {task.steps} as announced"
            )

    def _record_distances(self) -> None:
        if self._done() in self.moments:
            where = self.run.folder if self.fabric.is_global_zero else None
            record_distances(self.task, self.moments[self._done()], where)

    def _report_losses(self, rate: float) -> None:
        means = self.meter.means()
        self.listener.progressed(self._done(), self.total, means, rate)
        bad = [name for name, value in means.items() if value != value]
        if bad:
            raise ExperimentError(
                f"the {bad[0]} loss is not a number in epoch {self.epoch + 1}; lower the learning "
                f"rate or the weight"
            )

    def _measured(self, what: str) -> dict[str, float]:
        return {} if self.task.on_layer is None else self.task.on_layer.measured(what)

    def _report_strength(self, start: float, board: Board) -> None:
        """Show the first step's share; a line of its own has it, unless the line of an end does."""
        self.about["strength_at_start"] = shares = self._measured("gradient_shares")
        if not shares:
            why = "" if self.task.on_layer is None else self.task.on_layer.why_no_shares()
            if why:
                self.listener.no_strength(why)
        elif self._done() not in self.line_ends:
            self.listener.strength(shares, self._done())
            self._add_line({"epoch": self.epoch + 1, "step": self._done(), **shares}, start)
            for name, value in shares.items():
                board.add(name, value, self._done())

    def _done(self) -> int:
        return self.epoch * self.task.steps + self.step

    def _parts(self) -> dict[str, Any]:
        """What a checkpoint holds: the task's parts, and the loss scale of half precision."""
        scaler = getattr(self.fabric.strategy.precision, "scaler", None)
        return {**self.task.parts(), **({} if scaler is None else {"scaler": scaler})}

    def _checkpoint(self, start: float) -> None:
        """Save everything that the run needs to continue from here."""
        state = {name: part.state_dict() for name, part in self._parts().items()}
        epoch, step = divmod(self._done(), self.task.steps)  # a finished epoch is not begun again
        if self.fabric.is_global_zero:
            whole = {
                "parts": state,
                "epoch": epoch,
                "step": step,
                "meter": self.meter.state(),
                "lines": self.lines,
                "seconds": time.monotonic() - start,
                "strength_at_start": self.about.get("strength_at_start"),
                "unreadable": sorted(self.task.unreadable),
            }
            write_state(self.run.checkpoint, whole)
        self.saved = time.monotonic()

    def _continue(self) -> None:
        """Load the last checkpoint, if there is one; drop lines of metrics written after it."""
        state = self.run.load_checkpoint(self.fabric.device)
        if state is not None:
            try:
                self._load(state)
            except Exception as error:  # of another version, or damaged: anything can be missing
                reason = f"{type(error).__name__}: {error}".splitlines()[0]
                raise self.run.bad_checkpoint(reason) from error
        self._write_lines()

    def _load(self, state: dict[str, Any]) -> None:
        for name, part in self._parts().items():
            part.load_state_dict(state["parts"][name])
        self.epoch, self.step = int(state["epoch"]), int(state["step"])
        self.meter.load(state["meter"])
        self.lines, self.seconds = list(state["lines"]), float(state["seconds"])
        expected = sorted(end for end in self.line_ends if end <= self._done())
        steps = [json.loads(line)["step"] for line in self.lines]
        if steps not in (expected, [1, *expected]):  # some have a line of the first step
            raise ValueError(f"the lines of metrics are not those of {self._done()} steps")
        if state["strength_at_start"] is not None:
            self.about["strength_at_start"] = state["strength_at_start"]
        self.task.unreadable.update(state["unreadable"])

    def _end_line(self, start: float, board: Board) -> None:
        """Write the mean losses since the last line, and evaluate if it is time to."""
        step, metrics = self._done(), {}
        shares = self._measured("gradient_shares")
        losses = self.meter.means() | self._measured("stats") | shares
        if shares:
            self.listener.strength(shares, step)
        line: dict[str, Any] = {"epoch": self.epoch + 1, "step": step, **losses}
        if step in self.evaluations:
            line["metrics"] = metrics = self.task.evaluate()
            self.listener.evaluated(self.epoch + 1, step, metrics)
            if board.shows and (atoms := self.task.atoms(SHOWN)) is not None:
                board.add_atoms(atoms, step)
        for name, value in {**losses, **metrics}.items():
            board.add(name, value, step)
        self._add_line(line, start)
        self.meter = Meter()

    def _add_line(self, line: Mapping[str, Any], start: float) -> None:
        seconds = round(time.monotonic() - start, 3)
        self.lines.append(json.dumps({**line, "seconds": seconds}))
        self._write_lines()

    def _write_lines(self) -> None:
        if self.fabric.is_global_zero:
            text = "".join(line + "\n" for line in self.lines)
            # Not durable: the checkpoint has them too.
            write_text(self.run.metrics, text, durable=False, then=CONTINUES)

    def _board(self) -> AbstractContextManager[Board]:
        """TensorBoard, where that is installed."""
        if self.machine.tensorboard and self.fabric.is_global_zero and has_tensorboard():
            return tensorboard(self.run.folder / "tensorboard", self._done() + 1)
        return nullcontext(Board())

    def _finish(self, start: float) -> dict[str, Any]:
        lines = [line for line in map(json.loads, self.lines) if line["step"] in self.line_ends]
        found = [line["metrics"] for line in lines if "metrics" in line]
        last = found[-self.key.settings.average_last :]
        metrics = {
            name: round(sum(each[name] for each in last) / len(last), 7) for name in last[-1]
        }
        metrics |= self.task.evaluate_once()
        self._record_distances()
        files = self._leave() if self.fabric.is_global_zero else []
        result = {
            **self.about,
            "metrics": metrics,
            "last_epoch": lines[-1],
            "broken_down": self.task.broken_down(lines),
            "seconds": round(time.monotonic() - start, 3),
            "unreadable": sorted(self.task.unreadable),
            "files": [file.name for file in files],
        }
        if self.fabric.is_global_zero:
            self.run.save_model(self.task.parts())
            write_text(self.run.result, json.dumps(result, indent=2) + "\n", then=CONTINUES)
            self.run.checkpoint.unlink(missing_ok=True)
        return result

    def _leave(self) -> list[Path]:
        """Write the task's files, and some samples with their charges."""
        files, atoms = self.task.finish(), self.task.atoms(MOST)
        written = None if atoms is None else write_atoms(self.run.folder, atoms)
        return files + ([] if written is None else [written])
