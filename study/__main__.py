"""The command line of the study; see `study`."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import torch

import study
from atomsep.experiments.entry_points import import_extensions
from atomsep.experiments.machine import Machine
from atomsep.experiments.sweeps.ledger import Event
from atomsep.experiments.sweeps.mps import share_gpu
from atomsep.experiments.sweeps.sweep import open_sweep
from study import pages, questions, results, tables
from study.questions import QUESTIONS, Planned
from study.tasks import TASKS


def tell(event: Event) -> None:
    """A line for each run that ends."""
    if event.kind in ("finished", "failed"):
        run = event.key.folder(Path())
        print(f"{event.kind} {run} ({event.done:.0f} of {event.total})", flush=True)


class Study:
    """What was asked for on the command line."""

    def __init__(self, given: argparse.Namespace) -> None:
        self.given, self.data = given, given.data
        self.graphs = given.device != "cpu" and torch.cuda.is_available()
        self.questions = {name: QUESTIONS[name] for name in given.questions or QUESTIONS}

    def tasks(self) -> list[str]:
        """The tasks of the questions, each once."""
        named = dict.fromkeys(task for each in self.questions.values() for task in each.arms)
        return [task for task in named if task in (self.given.tasks or TASKS)]

    def tuning(self) -> Iterator[Planned]:
        """The runs that tune plain training."""
        for task in self.tasks():
            yield from questions.plan_tuning(task, self.data, graphs=self.graphs)

    def arms(self, phase: str, *, known: bool = False) -> Iterator[Planned]:
        """The runs of a phase that can be planned by what has been collected.

        Args:
            phase: see `questions`.
            known: whether to leave out what runs that are missing now may decide.
        """
        for question in self.questions.values():
            for task in question.arms if question.phase == phase else ():
                tuned = results.choose(task, partly=not known)
                if task in self.tasks() and tuned is not None:
                    arms = [a for a in question.arms[task] if a.strength is not None or not known]
                    arms = results.with_strengths(task, arms)
                    yield from questions.plan_arms(
                        *(question, task, self.data, tuned, arms), graphs=self.graphs
                    )

    def rounds(self) -> Iterator[list[Planned]]:
        """What to train: first all that nothing else decides, so that the device stays busy."""
        fixed = [*self.arms("test", known=True), *self.arms("trials", known=True)]
        yield [*self.tuning(), *fixed]
        yield [*self.arms("test", known=True), *self.arms("trials")]
        yield [*self.arms("test")]

    def collect(self) -> None:
        """Read finished runs into `results/`, phase by phase: each decides what the next has."""
        for plan in (self.tuning, lambda: self.arms("trials"), lambda: self.arms("test")):
            planned: dict[str, list[Planned]] = {}
            for each in plan():
                planned.setdefault(each.task, []).append(each)
            for task, runs in planned.items():
                results.collect(task, runs, self.given.out)

    def run(self) -> None:
        """Train what is missing; see `rounds`."""
        given = self.given
        machine = Machine(device=given.device, data=given.data)
        with (
            share_gpu(given.device) if given.mps else nullcontext(),
            open_sweep("local", given.out, machine, given.jobs or None) as sweep,
        ):
            for planned in self.rounds():
                wanted = planned if not given.missing else list(results.uncollected(planned))
                report = sweep.run([each.key for each in wanted], tell)
                for failure in report.failed:
                    key = failure.key
                    print(f"{key.experiment}, {key.method}, seed {key.seed}: {failure.reason}")
                self.collect()
                if report.left:  # Ctrl-C; the same command continues
                    raise SystemExit(130)

    def plan(self) -> None:
        """Print how many runs each question has."""
        for name, question in self.questions.items():
            for task, arms in question.arms.items():
                count = (len(arms) + 1) * question.seeds.get(task, 5)
                trained = len(tables.rows_of(name, task))
                print(f"{name}: {task}: {count} runs, {trained} of them collected")


def main() -> None:
    """Plan, run, collect, or fill in tables."""
    parser = argparse.ArgumentParser(
        prog="python -m study",
        description=study.__doc__,
        formatter_class=argparse.RawTextHelpFormatter,
    )
    parser.add_argument("do", choices=("plan", "run", "collect", "tables"))
    parser.add_argument("questions", nargs="*", help=f"default: all ({', '.join(QUESTIONS)})")
    parser.add_argument("--tasks", nargs="+", choices=TASKS, help="only these")
    parser.add_argument("--data", type=Path, default=Path("data"), help="folder of all data")
    parser.add_argument("--out", type=Path, default=Path("runs"), help="folder of the runs")
    parser.add_argument("--jobs", type=int, default=0, help="runs at a time; 0: as many as fit")
    parser.add_argument("--device", default="auto", help="cpu, cuda or auto")
    parser.add_argument("--missing", action="store_true", help="skip runs in study/results")
    parser.add_argument("--mps", action="store_true", help="share the GPU through NVIDIA MPS")
    given = parser.parse_intermixed_args()
    for name in given.questions:
        if name not in QUESTIONS:
            parser.error(f"there is no question {name!r}; choose from {', '.join(QUESTIONS)}")
    if given.do == "tables":
        print(*pages.fill(), sep="\n")
        return
    import_extensions(["study.rules", "study.small"])
    asked = Study(given)
    {"plan": asked.plan, "run": asked.run, "collect": asked.collect}[given.do]()
    if given.do != "plan":
        for task in asked.tasks():
            print(f"{task}: {len(results.read(task))} runs in {results.file_of(task)}")


if __name__ == "__main__":
    main()
