"""A training step of StyleSwin with and without the loss: `python -m benchmarks.styleswin`.

The step is that of `atomsep train faces-gan`: discriminator with balanced consistency, R1 in every
16th step, generator, moving average. Three tasks take turns of 16 steps in one process: without the
loss, without it again (to see the noise), and with it. With `--steps` a turn is shorter; R1, in its
first step, still counts as in every 16th. Memory is the peak of each task alone, on a GPU. The
batch is the largest of a few that fits, or 4 on a CPU, unless it is given. Each turn is printed as
it ends. Steps vary by more than the loss takes, so the loss and its gradient are timed alone as
well, on a latent of the same shape. Adds rows to `results/styleswin.csv`, also when it is stopped
early, by Ctrl-C or by `timeout`.
"""

from __future__ import annotations

import argparse
import gc
import signal
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from atomsep import AtomLoss
from atomsep.experiments.gan.experiments import FacesSettings
from atomsep.experiments.gan.pictures import Pictures
from atomsep.experiments.gan.styleswin.build import make_networks
from atomsep.experiments.gan.styleswin.faces import Faces
from atomsep.experiments.machine import Machine, make_fabric
from atomsep.experiments.randomness import seed_step
from atomsep.experiments.settings import change
from atomsep.experiments.task import Context
from benchmarks import record

BATCHES = (96, 64, 48, 32, 16, 8, 4)
"""Batches to try, if none is given."""

CPU_BATCHES = (4,)
"""One of eight processes has so many; a CPU does not say when its memory is used up."""

CONTENDERS = {"without": "plain", "without, again": "plain", "with": "atom"}


@dataclass
class Measured:
    """What has been measured so far.

    Attributes:
        taken: milliseconds per step in each turn, by contender.
        peaks: the peak memory of each task alone, in GB.
    """

    taken: dict[str, list[float]] = field(default_factory=dict)
    peaks: dict[str, float] = field(default_factory=dict)


def make_task(method: str, settings: FacesSettings, steps: int) -> Faces:
    """A task on random images for as many steps per epoch, which is never evaluated."""
    fabric = make_fabric(Machine(), settings.precision)
    seed_step(0, "initial weights")
    shape = (settings.batch * steps, 3, settings.size, settings.size)
    images = Pictures(torch.randint(0, 256, shape, dtype=torch.uint8), None)
    judge: Any = None
    context = Context(settings, method, 0, fabric, Path())
    task = Faces(context, *make_networks(settings), images, judge)
    task.on_layer.watch(False)  # as in all steps but the first and the last of a line
    return task


def turn(task: Faces) -> float:
    """Milliseconds per step, over an epoch whose first step alone has the penalty."""
    _wait()
    ends = [time.perf_counter()]
    for index, batch in enumerate(task.batches(0, 0)):
        seed_step(0, "step", 0, index)
        task.step(batch, index / (task.settings.epochs * task.steps))
        if index in (0, task.steps - 1):
            _wait()
            ends.append(time.perf_counter())
    penalised, others = ends[1] - ends[0], ends[-1] - ends[1]
    every: int = task.settings.r1_every
    return 1e3 * (penalised + (every - 1) * others / max(1, task.steps - 1)) / every


def fits(settings: FacesSettings) -> bool:
    """Whether the GPU has memory for a step of each task, penalty included, beside the others."""
    try:
        measure(change(settings, ["r1_every=1"]), Measured(), turns=0, steps=1)
    except torch.OutOfMemoryError:
        return False
    finally:
        _clear()
    return True


def measure(settings: FacesSettings, found: Measured, turns: int, steps: int) -> None:
    """Take turns; what each has found is in `found` when it ends."""
    _clear()
    tasks, own = {}, {}
    for name, method in CONTENDERS.items():
        before = _allocated()
        tasks[name] = make_task(method, settings, steps)
        own[name] = _allocated() - before
        _say(f"batch {settings.batch}: networks {name} are ready")
    warm = 2 if settings.graph else 1  # the second captures the steps that the first has seen
    for number in range(1 - warm, turns + 1):
        for name, task in tasks.items():
            others = _allocated() - own[name]
            milliseconds = turn(task)
            if number > 0:
                found.taken.setdefault(name, []).append(milliseconds)
            else:
                peak = (_peak() - others) / 1e9
                found.peaks[name] = max(peak, found.peaks.get(name, 0.0))
            which = f"turn {number} of {turns}" if number > 0 else "warm-up"
            _say(f"batch {settings.batch}, {which}, {name}: {milliseconds:.1f} ms per step")


@contextmanager
def stoppable() -> Iterator[None]:
    """Leave the block at Ctrl-C, or where `timeout` ends the process, and go on after it."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    except KeyboardInterrupt:
        _say("stopped early")
    finally:
        signal.signal(signal.SIGTERM, before)


def loss_alone(settings: FacesSettings, repeats: int = 7) -> float:
    """Milliseconds of the loss and its gradient on a latent of the step's shape."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    dtype = torch.bfloat16 if settings.precision == "bf16-mixed" else torch.float32
    shape = settings.batch, (settings.size // 2) ** 2, settings.hidden
    latent = torch.randn(shape, device=device, dtype=dtype, requires_grad=True)
    criterion, taken = AtomLoss(), []
    for _ in range(repeats):
        _wait()
        start = time.perf_counter()
        criterion(latent).backward()
        _wait()
        taken.append(1e3 * (time.perf_counter() - start))
    return statistics.median(taken)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _allocated() -> int:
    """Bytes in use on the GPU; the count of the peak starts again."""
    if not torch.cuda.is_available():
        return 0
    torch.cuda.reset_peak_memory_stats()
    return torch.cuda.memory_allocated()


def _peak() -> int:
    return torch.cuda.max_memory_allocated() if torch.cuda.is_available() else 0


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def _clear() -> None:
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def main() -> None:
    """Measure, print and record."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--batch", type=int, default=0, help="images per step; 0: the largest")
    parser.add_argument("--turns", type=int, default=4, help="turns of each task")
    parser.add_argument("--steps", type=int, default=0, help="steps of a turn; 0: as r1_every")
    parser.add_argument("--precision", default="bf16-mixed")
    parser.add_argument("--set", action="append", default=[], help="a setting of faces-gan")
    parser.add_argument("--dry", action="store_true", help="record nothing")
    arguments = parser.parse_args()
    chosen = ["weight=1", f"precision={arguments.precision}", *arguments.set]
    settings = change(FacesSettings(), chosen)
    steps = arguments.steps or settings.r1_every
    if not min(2, settings.r1_every) <= steps <= settings.r1_every:
        parser.error(f"--steps must be from 2 to r1_every, which is {settings.r1_every}: {steps}")
    if arguments.batch == 1:
        parser.error("--batch must be at least 2: the loss is over pairs of samples")
    batches = BATCHES if torch.cuda.is_available() else CPU_BATCHES
    sizes = [arguments.batch] if arguments.batch else batches
    candidates = (change(settings, [f"batch={size}"]) for size in sizes)
    found = Measured()
    with stoppable():
        settings = next(each for each in candidates if len(sizes) == 1 or fits(each))
        measure(settings, found, arguments.turns, steps)
    if not found.taken:
        sys.exit("Stopped before the first turn ended: nothing to record. Try fewer --steps.")
    plain = statistics.median(found.taken["without"])
    rows: list[dict[str, object]] = []
    for name, times in found.taken.items():
        median = statistics.median(times)
        rows.append(
            {
                "step": name,
                "size": settings.size,
                "width": settings.width,
                "batch": settings.batch,
                "precision": settings.precision,
                "turns": len(times),
                "steps": steps,
                "ms": round(median, 3),
                "images_per_second": round(1e3 * settings.batch / median, 1),
                "overhead_percent": round(100 * (median / plain - 1), 2),
                "peak_gb": round(found.peaks[name], 3) or "",
            }
        )
    alone = loss_alone(settings)
    rows.append(
        {
            **dict.fromkeys(rows[0], ""),
            **{name: rows[0][name] for name in ("size", "width", "batch", "precision")},
            "step": "the loss alone",
            "ms": round(alone, 3),
            "overhead_percent": round(100 * alone / plain, 2),
        }
    )
    for row in rows:
        print("  ".join(f"{key} {value}" for key, value in row.items()), flush=True)
    if not arguments.dry:
        print(record.append("styleswin", rows))


if __name__ == "__main__":
    main()
