"""Runs per hour of the study on one GPU, against one process of an earlier version.

    git worktree add ../before 6733dee
    python -m benchmarks.sweep --before ../before --data DATA --out RUNS

The runs are those of `python -m study run --device cuda --mps` for some of its questions, as many
at a time as fit: counted are all of them, from the command to the last result. The earlier version
trains one run in one process, as its users did. That takes so long that a few epochs are trained
and the rest is extrapolated: start, data and evaluation as measured, and every further epoch like
the second. Both have the same settings, but for what makes the steps of this version faster. Adds
its rows to `results/sweep.csv`, and leaves the runs in RUNS, where the study finds them.

DATA holds flowers-102/, oxford-iiit-pet/, imagenette-80/ (train/ and val/) and mnist/, as
docs/experiments.md says.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks import record
from study.tasks import TASKS

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class Case:
    """A task of the study.

    Attributes:
        task: its name.
        questions: those whose runs are counted; the runs that tune plain training come with them.
        needs: the folder of its data.
        few: passes that the earlier version is measured over, at least 3.
        before: settings of the earlier version, which mean the same as the study's.
        validation: whether the runs train without the samples that they are evaluated on.
    """

    task: str
    questions: tuple[str, ...]
    needs: str
    few: int
    before: tuple[str, ...]
    validation: bool = False


BF16 = "precision=bf16-mixed"
CASES = {
    "Flowers": Case(
        *("flowers", ("strength", "peers"), "flowers-102", 4, (BF16, "image=64")), validation=True
    ),
    "Pets": Case(
        *("pets", ("strength", "peers"), "oxford-iiit-pet", 3, (BF16, "image=64")), validation=True
    ),
    "Imagenette": Case(
        *("imagenette", ("classifiers",), "imagenette-80", 3),
        (BF16, "image=80", "batch=128", "folder={data}/imagenette-80"),
    ),
    "MNIST-GAN": Case(
        *("example-mnist", ("example",), "mnist", 3),
        (BF16, "features=classifier", "batch=128", "average_last=3"),
    ),
}


def epochs_of(case: Case) -> int:
    """Passes of a run of the study."""
    [epochs] = [each for each in TASKS[case.task].settings if each.startswith("epochs=")]
    return int(epochs.removeprefix("epochs="))


def call(source: Path, *command: str) -> float:
    """Seconds that a Python command takes with the version in a folder."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([f"{source}/src", *sys.path[1:]])}
    start = time.perf_counter()
    subprocess.run([sys.executable, *command], cwd=source, env=environment, check=True)
    return time.perf_counter() - start


def of_one_process(source: Path, case: Case, data: Path) -> float:
    """Seconds that one full run takes, extrapolated from a few epochs."""
    settings = [each.format(data=data) for each in (f"epochs={case.few}", *case.before)]
    with tempfile.TemporaryDirectory() as out:
        whole = call(
            *(source, "-c", "from atomsep.cli.main import main; main()"),
            *("train", TASKS[case.task].experiment, "--method", "plain", "--seed", "0"),
            *("--data", str(data), "--out", out, *(["--validation"] * case.validation)),
            *(word for each in settings for word in ("--set", each)),
        )
        [file] = Path(out).rglob("metrics.jsonl")
        ends = [json.loads(line)["seconds"] for line in file.read_text().splitlines()]
    epoch = ends[-2] - ends[-3]  # without the first, and without the evaluation after the last
    return whole + (epochs_of(case) - case.few) * epoch


def of_the_study(case: Case, data: Path, out: Path) -> tuple[int, float]:
    """How many runs the study makes, and the seconds that they take."""
    before = len(list(out.rglob("result.json")))
    seconds = call(
        *(ROOT, "-m", "study", "run", *case.questions, "--tasks", case.task),
        *("--data", str(data), "--out", str(out), "--device", "cuda", "--mps"),
    )
    return len(list(out.rglob("result.json"))) - before, seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--before", type=Path, required=True, help="folder of the earlier version")
    parser.add_argument("--data", type=Path, default=Path("data"))
    parser.add_argument("--only", choices=CASES, nargs="+", default=list(CASES))
    parser.add_argument("--out", type=Path, default=Path("runs"), help="folder of the study's runs")
    given = parser.parse_args()
    data, out = given.data.resolve(), given.out.resolve()
    for name in given.only:
        case = CASES[name]
        if not (data / case.needs).exists():
            parser.error(f"there is no folder {data / case.needs}; see --help")
        # First, so that the study pays for what is made once and kept beside the data.
        runs, seconds = of_the_study(case, data, out)
        if not runs:
            parser.error(f"all runs of {name} are in {out} already; choose another --out")
        before = of_one_process(given.before.resolve(), case, data)
        rates = 3600 / before, 3600 * runs / seconds
        row = {
            "experiment": name,
            "epochs": epochs_of(case),
            "settings": "study: " + " ".join(TASKS[case.task].settings),
            "runs": runs,
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
