"""A sweep that is killed again and again ends as one that was not."""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from processes import start
from tiny_runs import read_metrics

from atomsep.experiments.machine import Machine
from atomsep.experiments.registry import run_key
from atomsep.experiments.runs import Run, RunKey
from atomsep.experiments.sweeps import processes as worker_processes
from atomsep.experiments.sweeps import sweep, worker
from atomsep.experiments.sweeps.sweep import run_sweep
from atomsep.experiments.synthetic.experiment import SYNTHETIC
from atomsep.experiments.training import train

TRIALS = [
    run_key(SYNTHETIC, method, seed, ["epochs=40", "evaluate_every=10"], tiny=True)
    for seed in range(4)
    for method in ("plain", "atom", "simclr")
]
CPU = Machine(device="cpu", tensorboard=False, checkpoint_seconds=0.05)


class ForkedWorker:
    """Runs a worker as `subprocess.Popen` does, in a copy of this process: nothing to import."""

    def __init__(self, command: list[str], *, stderr: Any, env: dict[str, str], **_: Any) -> None:
        (trials, stdin), (stdout, answers) = os.pipe(), os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                for number, file in enumerate((trials, answers, stderr.fileno())):
                    os.dup2(file, number)
                os.closerange(3, 256)  # among them the other workers' pipes
                os.setsid()
                os.environ.update(env)
                sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w"), open(2, "w")  # noqa: SIM115
                os._exit(worker.main())
            finally:
                os._exit(1)
        os.close(trials)
        os.close(answers)
        self.stdin, self.stdout = os.fdopen(stdin, "wb"), os.fdopen(stdout, "rb")
        with open(os.environ["PIDS"], "a") as file:
            file.write(f"{self.pid}\n")

    def wait(self) -> int:
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)


def run_forked(root: Path, pids: Path) -> None:
    """A sweep with `--jobs auto` on two cores, in a process of its own."""
    os.environ["PIDS"] = str(pids)
    worker_processes.subprocess = SimpleNamespace(Popen=ForkedWorker, PIPE=-1)  # type: ignore
    sweep.cores = lambda: 2
    run_sweep(TRIALS, root, CPU, None)


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def read_pids(file: Path) -> list[int]:
    return [int(pid) for pid in file.read_text().split()]


def kill(pid: int) -> None:
    if is_running(pid):
        os.kill(pid, signal.SIGKILL)


def results(root: Path) -> dict[Path, str]:
    """All results, which must be whole."""
    files = {path.relative_to(root): path.read_text() for path in root.rglob("result.json")}
    assert all(json.loads(text)["metrics"] for text in files.values())
    return files


def disturb(root: Path, pids: Path, moments: random.Random) -> bool:
    """Start the sweep and kill some of its processes; returns whether it was at work."""
    pids.write_text("")
    process = start(run_forked, root, pids)
    assert process.pid is not None
    time.sleep(moments.uniform(0.05, 0.9))
    workers, was_alive = read_pids(pids), process.is_alive()
    victims = moments.choice(("the sweep", "a worker", "all"))
    if victims == "a worker" and workers:
        kill(moments.choice(workers))
        process.join(moments.uniform(0, 0.5))
    kill(process.pid)
    if victims == "all":
        for pid in workers:
            kill(pid)
    process.join()
    end = time.monotonic() + 30
    while any(map(is_running, read_pids(pids))):
        assert time.monotonic() < end, "workers end when the sweep is gone"
        time.sleep(0.01)
    return was_alive


def test_twenty_kills_lose_nothing(tmp_path: Path) -> None:
    """Kills the sweep alone, a worker and the sweep, or all, at moments from a fixed seed."""
    moments, pids = random.Random(14), tmp_path / "pids"
    roots, kills = [tmp_path / "killed-0"], 0
    finished: dict[Path, str] = {}
    while kills < 20:
        was_alive = disturb(roots[-1], pids, moments)
        after = results(roots[-1])
        assert finished.items() <= after.items(), "nothing finished is lost or changed"
        finished, kills = after, kills + was_alive
        if len(finished) == len(TRIALS):  # on a fast machine
            roots.append(tmp_path / f"killed-{len(roots)}")
            finished = {}
    for root in roots:
        before = results(root)
        process = start(run_forked, root, pids)
        process.join(60)
        assert process.exitcode == 0
        assert before.items() <= results(root).items()
        assert not list(root.rglob("*.part"))
        for key in TRIALS:
            same_as_whole(key, root, tmp_path / "whole")


def same_as_whole(key: RunKey, root: Path, whole: Path) -> None:
    """A run ended as one in this process that nobody disturbed."""
    run = Run(key.folder(root))
    expected, result = train(SYNTHETIC, key, whole, CPU), run.read_result()
    assert result is not None
    assert result["metrics"] == expected["metrics"]
    lines, expected_lines = (
        [{**line, "seconds": 0} for line in read_metrics(key.folder(each), start=True)]
        for each in (root, whole)
    )
    assert lines == expected_lines
    assert not run.checkpoint.exists()
