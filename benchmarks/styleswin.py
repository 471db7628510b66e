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


def peak_gb(method: str, settings: FacesSettings) -> float:
    """Most memory that a turn of one task takes; 0 on a CPU."""
    if not torch.cuda.is_available():
        return 0.0
    task = make_task(method, settings)
    torch.cuda.reset_peak_memory_stats()
    turn(task)
    found = torch.cuda.max_memory_allocated() / 1e9
    del task
    _clear()
    return found


def largest_batch(settings: FacesSettings) -> int:
    """The largest batch for which all three tasks have memory, one at a time."""
    for batch in BATCHES:
        tasks = []
        try:
            given = change(settings, [f"batch={batch}", "r1_every=1"])
            for method in CONTENDERS.values():
                tasks.append(make_task(method, given))
                turn(tasks[-1])
        except torch.OutOfMemoryError:
            continue
        else:
            return batch
        finally:
            tasks.clear()
            _clear()
    raise SystemExit(f"a batch of {BATCHES[-1]} does not fit")


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
    batch = arguments.batch or largest_batch(settings)
    settings = change(settings, [f"batch={batch}"])
    peaks = {name: peak_gb(method, settings) for name, method in CONTENDERS.items()}
    tasks = {name: make_task(method, settings) for name, method in CONTENDERS.items()}
    taken: dict[str, list[float]] = {name: [] for name in tasks}
    for number in range(arguments.turns + 1):
        for name, task in tasks.items():
            milliseconds = turn(task)
            if number:  # the first warms up
                taken[name].append(milliseconds)
    plain = statistics.median(taken["without"])
    rows: list[dict[str, object]] = []
    for name, times in taken.items():
        median = statistics.median(times)
        rows.append(
            {
                "step": name,
                "size": settings.size,
                "width": settings.width,
                "batch": batch,
                "precision": settings.precision,
                "ms": round(median, 3),
                "images_per_second": round(1e3 * batch / median, 1),
                "overhead_percent": round(100 * (median / plain - 1), 2),
                "peak_gb": round(peaks[name], 3),
            }
        )
        print("  ".join(f"{key} {value}" for key, value in rows[-1].items()), flush=True)
    if not arguments.dry:
        print(record.append("styleswin", rows))


if __name__ == "__main__":
    main()
