"""One committed CSV per topic, with the machine's name; rows are only ever added."""

from __future__ import annotations

import csv
import datetime
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch

FOLDER = Path(__file__).parent / "results"


def machine() -> str:
    """The processor or GPU that the numbers were taken on."""
    if torch.cuda.is_available():
        return torch.cuda.get_device_name()
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return f"{line.split(':')[1].strip()}, {torch.get_num_threads()} threads"
    except OSError:
        pass
    return f"{platform.processor() or platform.machine()}, {torch.get_num_threads()} threads"


def append(topic: str, rows: list[dict[str, object]]) -> Path:
    """Add rows to `results/TOPIC.csv`, each with date, machine and torch version."""
    FOLDER.mkdir(exist_ok=True)
    path = FOLDER / f"{topic}.csv"
    head = {
        "date": datetime.date.today().isoformat(),
        "machine": machine(),
        "torch": torch.__version__,
    }
    full = [{**head, **row} for row in rows]
    columns = list(full[0])
    if path.exists():
        with path.open(newline="") as file:
            known = next(csv.reader(file))
        if known != columns:
            raise ValueError(f"{path} has the columns {known}, and these rows have {columns}")
    fresh = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=columns)
        if fresh:
            writer.writeheader()
        writer.writerows(full)
    return path


def interleaved_ms(
    contenders: dict[str, Callable[[], object]], repeats: int = 15
) -> dict[str, float]:
    """Median milliseconds of each, taking turns, so that all see the same machine."""
    taken: dict[str, list[float]] = {name: [] for name in contenders}
    for turn in range(repeats + 2):
        for name, run in contenders.items():
            start = time.perf_counter()
            run()
            if turn >= 2:  # the first two warm up
                taken[name].append(1e3 * (time.perf_counter() - start))
    return {name: statistics.median(times) for name, times in taken.items()}
