"""User seconds of whole `atomsep train` commands on a CPU, from start to exit.

    python -m benchmarks.commands [--before ../before] [--repeats 5]

Trains a ResNet of one stage on scikit-learn's digits as PNG files, decoded by the loader in every
epoch (the default on a CPU) and once before the first step (`--data-on device`), and short tiny
runs, which are mostly start. With `--before`, the folder of an earlier version, each is compared
with that version's loop. Contenders take turns, on one thread; what counts is the processor's time,
which other jobs disturb less than the clock's. Adds its rows to `results/commands.csv`.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image
from sklearn.datasets import load_digits

from benchmarks import record

ROOT = Path(__file__).parents[1]
SETTINGS = ("image=16", "stages=1", "stem=cifar", "epochs=3", "batch=64")


def write_digits(folder: Path) -> None:
    """The digits by class, a third of them to evaluate on."""
    digits = load_digits()
    for number, (pixels, label) in enumerate(zip(digits.images, digits.target, strict=True)):
        file = folder / ("train" if number % 3 else "val") / str(label) / f"{number}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray((pixels * 15.9).astype("uint8")).resize((24, 24)).save(file)


def user_seconds(source: Path, *arguments: str) -> float:
    """Of a command of the version in a folder, with the processes that it starts."""
    paths = os.pathsep.join([f"{source}/src", *sys.path[1:]])
    environment = os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    start = (sys.executable, "-c", "from atomsep.cli.main import main; main()")
    with tempfile.TemporaryDirectory() as folder:  # nothing is decoded by an earlier run
        where = ("--device", "cpu", "--data", f"{folder}/data", "--out", folder)
        command = [*start, "train", *arguments, *where]
        subprocess.run(command, env=environment, check=True, capture_output=True)
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before


def compare(case: str, contenders: dict[str, tuple[Path | str, ...]], repeats: int) -> None:
    """Let the contenders take turns, and record their medians."""
    taken: dict[str, list[float]] = {name: [] for name in contenders}
    for turn in range(repeats + 1):
        for name, (source, *arguments) in contenders.items():
            seconds = user_seconds(Path(source), *map(str, arguments))
            if turn:  # the first reads files that the later ones find in memory
                taken[name].append(seconds)
    rows: list[dict[str, object]] = []
    for name, seconds in taken.items():
        rows.append(
            {
                "case": case,
                "contender": name,
                "repeats": repeats,
                "user_s": round(statistics.median(seconds), 2),
                "least_s": round(min(seconds), 2),
                "most_s": round(max(seconds), 2),
            }
        )
        print(rows[-1], flush=True)
    record.append("commands", rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--before", type=Path, help="folder of an earlier version")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--tiny", nargs="*", default=["synthetic", "cola", "mnist-gan"])
    given = parser.parse_args()
    versions: dict[str, Path] = {"now": ROOT}
    if given.before:
        versions["before"] = given.before.resolve()
    for name in given.tiny:
        each = {what: (where, name, "--tiny") for what, where in versions.items()}
        compare(f"{name} --tiny", each, given.repeats)
    with tempfile.TemporaryDirectory() as folder:
        write_digits(Path(folder))
        words = [f"--set={each}" for each in (*SETTINGS, f"folder={folder}")]
        whole = ("own-images", "--method", "plain", *words)
        # The earlier version evaluates at the end alone.
        now = {
            place: (ROOT, *whole, "--set=evaluate_every=0", "--data-on", place)
            for place in ("loader", "device")
        }
        old = {"before": (versions["before"], *whole)} if given.before else {}
        compare("own-images, digits", {**now, **old}, given.repeats)


if __name__ == "__main__":
    main()
