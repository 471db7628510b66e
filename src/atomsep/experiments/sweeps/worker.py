"""One process of a sweep: reads one trial per line, trains it, and answers line by line.

A trial is a JSON object: `imports` (modules that register experiments), `key` (see
`RunKey.record`), `root` and `machine`. The answers are

    {"ready": true}                     once, when it can take a trial
    {"done": 120, "total": 640}         now and then, first when the data is loaded
    {"memory": {…}, "evaluated": …}     after steps, evaluations and trials; see `memory.measure`
    {"finished": true}                  these five
    {"failed": "the reason"}            end
    {"stopped": "where"}                a
    {"crowded": "the reason"}           trial; this one says that memory ran out,
    {"lost": "the reason"}              and this one that the server of MPS ended

Everything printed during a trial goes to the run's `log.txt`. When the sweep closes the worker's
input, for whatever reason, the worker writes a checkpoint and ends. It
also ends without the server of MPS, because what it had on the GPU is gone.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import lightning.fabric  # noqa: F401  # takes seconds, so it comes before the worker is ready
import torch

from atomsep.experiments.entry_points import import_extensions
from atomsep.experiments.errors import ExperimentError, StoppedError
from atomsep.experiments.machine import Machine
from atomsep.experiments.progress import Listener
from atomsep.experiments.registry import find_experiment
from atomsep.experiments.runs import RunKey
from atomsep.experiments.settings import override
from atomsep.experiments.sweeps.memory import is_out_of_memory, measure
from atomsep.experiments.sweeps.mps import has_lost_server
from atomsep.experiments.training import train

Answer = Callable[[Mapping[str, Any]], None]


def read_key(record: Mapping[str, Any]) -> RunKey:
    """The run that a record describes; the inverse of `RunKey.record`.

    Raises:
        ExperimentError: the experiment or a setting is unknown.

    Example:
        >>> from atomsep.experiments.registry import find_experiment, run_key
        >>> key = run_key(find_experiment("synthetic"), "atom", 3, ["epochs=2"])
        >>> read_key(json.loads(json.dumps(key.record()))) == key
        True
    """
    experiment = find_experiment(record["experiment"])
    settings = override(experiment.settings, record["settings"])
    return RunKey(
        *(record["experiment"], record["method"], record["seed"], settings),
        tiny=record["tiny"],
        validation=record["validation"],
    )


class Reporter(Listener):
    """A listener that answers with the steps done and the memory taken."""

    def __init__(self, answer: Answer) -> None:
        self.answer, self.has_evaluated = answer, False

    def started(self, key: RunKey, done: int, total: int) -> None:
        """The data is loaded, and training begins."""
        self.answer({"done": done, "total": total})

    def progressed(self, done: int, total: int, parts: Mapping[str, float], rate: float) -> None:
        """Report the steps done."""
        self.answer({"done": done, "total": total})
        self.answer({"memory": measure(), "evaluated": self.has_evaluated})

    def evaluated(self, epoch: int, step: int, metrics: Mapping[str, float]) -> None:
        """Report the memory, of which evaluations may take more than steps."""
        self.has_evaluated = True
        self.answer({"memory": measure(), "evaluated": True})


@contextmanager
def logged(folder: Path) -> Iterator[None]:
    """Send everything that is printed, by libraries in C too, to a run's log."""
    folder.mkdir(parents=True, exist_ok=True)
    kept = os.dup(1), os.dup(2)
    with open(folder / "log.txt", "ab", buffering=0) as log:
        for number in (1, 2):
            os.dup2(log.fileno(), number)
    try:
        yield
    finally:
        with suppress(OSError):  # a full disk, which the run's own error names
            sys.stdout.flush()
            sys.stderr.flush()
        for number, file in enumerate(kept, 1):
            os.dup2(file, number)
            os.close(file)


def work(line: str, answer: Answer) -> dict[str, Any]:
    """Train one trial; returns the last answer."""
    trial = json.loads(line)
    try:
        import_extensions(trial.get("imports", ()))
        key, root = read_key(trial["key"]), Path(trial["root"])
        machine = Machine(**{**trial["machine"], "data": Path(trial["machine"]["data"])})
        with logged(key.folder(root)):
            return _train(key, root, machine, answer)
    except (ExperimentError, OSError) as error:  # no such experiment, or the log cannot be opened
        return {"failed": str(error)}


def _train(key: RunKey, root: Path, machine: Machine, answer: Answer) -> dict[str, Any]:
    if torch.cuda.is_initialized():  # what an earlier trial took says nothing about this one
        torch.cuda.reset_peak_memory_stats()
    try:
        train(find_experiment(key.experiment), key, root, machine, Reporter(answer))
    except StoppedError as stopped:
        return {"stopped": str(stopped)}
    except Exception as error:
        with suppress(OSError):  # a full disk
            traceback.print_exc()
        kind = "lost" if has_lost_server(error) else "failed"
        kind = "crowded" if is_out_of_memory(error) else kind
        if isinstance(error, ExperimentError):
            return {kind: str(error)}
        # The first line: below it, CUDA's errors give advice.
        first = str(error).strip().partition("\n")[0]
        return {kind: ": ".join(filter(None, (type(error).__name__, first)))}
    finally:
        if torch.cuda.is_initialized():  # free the memory for the next trial
            import gc

            gc.collect()
            with suppress(RuntimeError):  # an error of CUDA that lasts, which the answer names
                torch.cuda.empty_cache()
    return {"finished": True}


def main() -> int:
    """Work until the sweep has no more trials."""
    answers = os.dup(1)
    os.dup2(2, 1)  # nothing else that is printed may look like an answer
    # A process that a data loader forks closes sys.stdin, and would wait for its reader forever.
    trials = os.fdopen(os.dup(0))
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)
    lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
    busy = threading.Event()

    def read() -> None:  # in a thread, so that the end of the input is noticed during training
        for line in trials:
            busy.set()  # here, so that a trial that waits to be taken is stopped too
            lines.put(line)
        lines.put(None)
        if busy.is_set():
            os.kill(os.getpid(), signal.SIGTERM)  # the training loop then writes a checkpoint

    def answer(message: Mapping[str, Any]) -> None:
        with suppress(BrokenPipeError):  # the sweep has ended; the thread notices it too
            os.write(answers, json.dumps(message).encode() + b"\n")

    threading.Thread(target=read, daemon=True).start()
    answer({"ready": True})
    for line in iter(lines.get, None):
        last = work(line, answer)
        busy.clear()
        if "lost" in last:
            answer(last)
            break
        answer({"memory": measure(), "evaluated": False})
        answer(last)
    return 0


if __name__ == "__main__":
    sys.exit(main())
