"""Runs per hour of a sweep that shares one GPU, against one process of an earlier version.

    git worktree add ../before 6733dee
    python -m benchmarks.sweep --before ../before --data DATA

Each experiment is swept with `--jobs auto --mps`, as a user would (with `--device cpu` without
`--mps` and without CUDA graphs), from the command to the last
result. The earlier version trains one run in one process, as its users did; that takes so long that
a few epochs are trained and the rest is extrapolated: start, data and evaluation as measured, and
every further epoch like the second. Both have the same settings, given below. Adds its rows to
`results/sweep.csv`.

DATA holds flowers-102/, oxford-iiit-pet/, imagenette/ (train/ and val/) and mnist/, as
docs/experiments.md says; `--imagenette FOLDER` names another folder of Imagenette, such as the
study's `imagenette-80/`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks import record

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class Case:
    """An experiment to sweep.

    Attributes:
        experiment: its name.
        needs: the folder of its data, beside the others or anywhere.
        epochs: passes in a full run.
        few: passes that the earlier version is measured over, at least 3.
        settings: other settings, of both versions.
        before: settings of the earlier version alone.
        now: settings of this one alone: what it evaluates is what the earlier one does, once at the
            end, and it has what makes its steps faster.
    """

    experiment: str
    needs: str
    epochs: int
    few: int
    settings: tuple[str, ...] = ()
    before: tuple[str, ...] = ()
    now: tuple[str, ...] = ()


BF16 = "precision=bf16-mixed"
GRAPH = "graph=true"
ONCE = ("evaluate_every=0", GRAPH)
CASES = {
    "Flowers": Case("flowers", "flowers-102", 60, 4, (BF16,), now=ONCE),
    "Pets": Case("pets", "oxford-iiit-pet", 30, 3, (BF16,), now=ONCE),
    "Imagenette": Case(
        *("own-images", "imagenette", 20, 3),
        (BF16, "model=resnet18", "image=64", "batch=128"),
        now=ONCE,
    ),
    "MNIST-GAN": Case(
        *("mnist-gan", "mnist", 5, 3, (BF16, "features=classifier", "batch=128")),
        before=("average_last=1",),
        now=(*ONCE, "average_last=1", "ema=0"),
    ),
}


def assignments(case: Case, data: Path, epochs: int, *more: str) -> list[str]:
    given = [f"epochs={epochs}", *case.settings, *more]
    if case.experiment == "own-images":
        given.append(f"folder={data / case.needs}")
    return [word for each in given for word in ("--set", each)]


def atomsep(source: Path, *arguments: str) -> float:
    """Seconds that a command of the version in a folder takes."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([f"{source}/src", *sys.path[1:]])}
    start = time.perf_counter()
    subprocess.run(
        [sys.executable, "-c", "from atomsep.cli.main import main; main()", *arguments],
        env=environment,
        check=True,
    )
    return time.perf_counter() - start


def without_gpu(case: Case) -> Case:
    """The case with settings that a CPU can train with."""
    return replace(case, now=tuple(each for each in case.now if each != GRAPH))


def of_one_process(source: Path, case: Case, data: Path, seed: int, device: str) -> float:
    """Seconds that one full run takes, extrapolated from a few epochs."""
    with tempfile.TemporaryDirectory() as out:
        whole = atomsep(
            *(source, "train", case.experiment, "--method", "plain", "--seed", str(seed)),
            *("--device", device, "--data", str(data), "--out", out),
            *assignments(case, data, case.few, *case.before),
        )
        [file] = Path(out).rglob("metrics.jsonl")
        ends = [json.loads(line)["seconds"] for line in file.read_text().splitlines()]
    epoch = ends[-2] - ends[-3]  # without the first, and without the evaluation after the last
    return whole + (case.epochs - case.few) * epoch


def of_a_sweep(case: Case, data: Path, runs: int, kept: Path | None, device: str) -> float:
    """Seconds that a sweep of so many runs takes."""
    shared = ("--mps",) if device == "cuda" else ()
    with tempfile.TemporaryDirectory() as out:
        return atomsep(
            *(ROOT, "sweep", case.experiment, "--methods", "plain", "--seeds", str(runs)),
            *("--jobs", "auto", *shared, "--device", device),
            *("--data", str(data), "--out", str(kept or out)),
            *assignments(case, data, case.epochs, *case.now),
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--before", type=Path, required=True, help="folder of the earlier version")
    parser.add_argument("--data", type=Path, default=Path("data"))
    parser.add_argument("--imagenette", type=Path, metavar="FOLDER", help="if not DATA/imagenette")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--only", choices=CASES, nargs="+", default=list(CASES))
    parser.add_argument("--runs", type=int, default=28, help="runs of each sweep")
    parser.add_argument("--out", type=Path, help="keep the runs of the sweeps in this new folder")
    given = parser.parse_args()
    data = given.data.resolve()
    for name in given.only:
        case = CASES[name] if given.device == "cuda" else without_gpu(CASES[name])
        if name == "Imagenette" and given.imagenette is not None:
            case = replace(case, needs=str(given.imagenette.resolve()))
        if not (data / case.needs).exists():
            parser.error(f"there is no folder {data / case.needs}; see --help")
        # First, so that the sweep pays for what is made once and kept beside the data.
        seconds = of_a_sweep(case, data, given.runs, given.out, given.device)
        before = of_one_process(given.before.resolve(), case, data, 0, given.device)
        rates = 3600 / before, 3600 * given.runs / seconds
        row = {
            "experiment": name,
            "epochs": case.epochs,
            "settings": " ".join((*case.settings, *case.now)),
            "runs": given.runs,
            "one_run_before_s": round(before, 1),
            "sweep_s": round(seconds, 1),
            "runs_per_hour_before": round(rates[0], 1),
            "runs_per_hour": round(rates[1], 1),
            "ratio": round(rates[1] / rates[0], 1),
        }
        print(row, flush=True)
        record.append("sweep", [row])


if __name__ == "__main__":
    main()
