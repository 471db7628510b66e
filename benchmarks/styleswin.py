"""A training step of StyleSwin with and without the loss: `python -m benchmarks.styleswin`.

The step is that of `atomsep train faces-gan`: discriminator with balanced consistency, R1 in every
16th step, generator, moving average. Three tasks take turns of 16 steps in one process: without the
loss, without it again (to see the noise), and with it. Memory is the peak of each task alone. The
batch is the largest of a few that fits, unless it is given. Adds rows to `results/styleswin.csv`.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
from pathlib import Path
from typing import Any

import torch

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

CONTENDERS = {"without": "plain", "without, again": "plain", "with": "atom"}


def make_task(method: str, settings: FacesSettings) -> Faces:
    """A task on random images, which is never evaluated."""
    fabric = make_fabric(Machine(), settings.precision)
    seed_step(0, "initial weights")
    shape = (settings.batch * settings.r1_every, 3, settings.size, settings.size)
    images = Pictures(torch.randint(0, 256, shape, dtype=torch.uint8), None)
    judge: Any = None
    context = Context(settings, method, 0, fabric, Path())
    task = Faces(context, *make_networks(settings), images, judge)
    task.on_layer.watch(False)  # as in all steps but the first and the last of a line
    return task


def turn(task: Faces) -> float:
    """Milliseconds per step, over an epoch of as many steps as lie between two penalties."""
    _wait()
    start = time.perf_counter()
    for index, batch in enumerate(task.batches(0, 0)):
        seed_step(0, "step", 0, index)
        task.step(batch, index / (task.settings.epochs * task.steps))
    _wait()
    return 1e3 * (time.perf_counter() - start) / task.steps


def fits(settings: FacesSettings) -> bool:
    """Whether the GPU has memory for a step of each task, penalty included, beside the others."""
    try:
        measure(change(settings, ["r1_every=1"]), turns=0)
    except torch.OutOfMemoryError:
        return False
    finally:
        _clear()
    return True


def measure(settings: FacesSettings, turns: int) -> tuple[dict[str, list[float]], dict[str, float]]:
    """Milliseconds per step in each turn, and the peak memory of each task alone, in GB."""
    _clear()
    tasks, own = {}, {}
    for name, method in CONTENDERS.items():
        before = _allocated()
        tasks[name] = make_task(method, settings)
        own[name] = _allocated() - before
    taken: dict[str, list[float]] = {name: [] for name in tasks}
    peaks = {}
    for number in range(turns + 1):
        for name, task in tasks.items():
            others = _allocated() - own[name]
            milliseconds = turn(task)
            if number:
                taken[name].append(milliseconds)
            else:  # warms up
                peaks[name] = (_peak() - others) / 1e9
    return taken, peaks


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
    parser.add_argument("--precision", default="bf16-mixed")
    parser.add_argument("--set", action="append", default=[], help="a setting of faces-gan")
    parser.add_argument("--dry", action="store_true", help="record nothing")
    arguments = parser.parse_args()
    chosen = ["weight=1", f"precision={arguments.precision}", *arguments.set]
    settings = change(FacesSettings(), chosen)
    sizes = [arguments.batch] if arguments.batch else BATCHES
    candidates = (change(settings, [f"batch={size}"]) for size in sizes)
    settings = next(each for each in candidates if arguments.batch or fits(each))
    taken, peaks = measure(settings, arguments.turns)
    plain = statistics.median(taken["without"])
    rows: list[dict[str, object]] = []
    for name, times in taken.items():
        median = statistics.median(times)
        rows.append(
            {
                "step": name,
                "size": settings.size,
                "width": settings.width,
                "batch": settings.batch,
                "precision": settings.precision,
                "ms": round(median, 3),
                "images_per_second": round(1e3 * settings.batch / median, 1),
                "overhead_percent": round(100 * (median / plain - 1), 2),
                "peak_gb": round(peaks[name], 3),
            }
        )
        print("  ".join(f"{key} {value}" for key, value in rows[-1].items()), flush=True)
    if not arguments.dry:
        print(record.append("styleswin", rows))


if __name__ == "__main__":
    main()
