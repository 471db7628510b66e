"""The command line of the study; see `study`."""

from __future__ import annotations

import argparse
from contextlib import nullcontext
from pathlib import Path

from atomsep.experiments.entry_points import import_extensions
from atomsep.experiments.machine import Machine
from atomsep.experiments.sweeps.ledger import Event
from atomsep.experiments.sweeps.mps import share_gpu
from atomsep.experiments.sweeps.sweep import run_sweep
from study import questions, results, tables
from study.tasks import TASKS


def tell(event: Event) -> None:
    """A line for each run that ends."""
    if event.kind in ("finished", "failed"):
        run = event.key.folder(Path())
        print(f"{event.kind} {run} ({event.done:.0f} of {event.total})", flush=True)


def train(runs: list[questions.Planned], given: argparse.Namespace) -> None:
    """Train all runs that are not finished."""
    machine = Machine(device=given.device, data=given.data)
    report = run_sweep([each.key for each in runs], given.out, machine, given.jobs or None, tell)
    for failure in report.failed:
        print(f"{failure.key.method}, seed {failure.key.seed}: {failure.reason} ({failure.log})")
    if report.left:  # Ctrl-C; the same command continues
        raise SystemExit(130)


def run(given: argparse.Namespace) -> None:
    """Tune plain training in all tasks, then compare the methods."""
    question = questions.QUESTIONS[given.question]
    with share_gpu(given.device) if given.mps else nullcontext():
        train(
            [each for task in given.tasks for each in questions.plan_tuning(task, given.data)],
            given,
        )
        rest: list[questions.Planned] = []
        for task in given.tasks:
            tuned = results.choose(task, given.data, given.out)
            name = TASKS[task].tuned[0]
            found = "no value could be chosen, so it is left out" if tuned is None else f"{tuned:g}"
            print(f"{task}: {name} {found}", flush=True)
            if tuned is not None:
                rest += questions.plan_comparison(question, task, given.data, tuned)
        wanted = ("plain", *(given.methods or question.methods))
        train([each for each in rest if each.method in wanted], given)


def main() -> None:
    """Run, collect, or fill in tables."""
    parser = argparse.ArgumentParser(prog="python -m study", description=__doc__)
    parser.add_argument("do", choices=("run", "collect", "tables"))
    parser.add_argument("question", nargs="?", choices=questions.QUESTIONS)
    parser.add_argument("--tasks", nargs="+", help="only these")
    parser.add_argument("--methods", nargs="+", help="only plain training and these")
    parser.add_argument("--data", type=Path, default=Path("data"))
    parser.add_argument("--out", type=Path, default=Path("runs"), help="folder of the runs")
    parser.add_argument("--jobs", type=int, default=0, help="runs at a time; 0: as many as fit")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--mps", action="store_true", help="share the GPU through NVIDIA MPS")
    given = parser.parse_args()
    if given.do == "tables":
        print(*tables.fill(), sep="\n")
        return
    if given.question is None:
        parser.error(f"name a question: {', '.join(questions.QUESTIONS)}")
    import_extensions(["study.rules"])
    question = questions.QUESTIONS[given.question]
    given.tasks = given.tasks or list(question.tasks)
    for names, known in ((given.tasks, question.tasks), (given.methods or (), question.methods)):
        for name in names:
            if name not in known:
                parser.error(f"{given.question} has no {name!r}, only {', '.join(known)}")
    if given.do == "run":
        run(given)
    for task in given.tasks:
        count = results.collect(given.question, task, given.data, given.out)
        print(f"{task}: {count} runs in {results.file_of(given.question, task)}")


if __name__ == "__main__":
    main()
