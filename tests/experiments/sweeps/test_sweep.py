"""Sweeps: with a stub for the worker, and with real ones."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tiny_runs import read_metrics

from atomsep.experiments.errors import ExperimentError
from atomsep.experiments.machine import Machine
from atomsep.experiments.registry import run_key
from atomsep.experiments.runs import Run, RunKey
from atomsep.experiments.sweeps import processes, sweep
from atomsep.experiments.sweeps.ledger import RETRIES, Event, Ledger
from atomsep.experiments.sweeps.processes import WorkerProcess, environment
from atomsep.experiments.sweeps.sweep import run_sweep
from atomsep.experiments.synthetic.experiment import SYNTHETIC
from atomsep.experiments.training import train

STUB = Path(__file__).with_name("stub_worker.py")
CPU = Machine(device="cpu", tensorboard=False, checkpoint_seconds=0)


def trial(method: str, seed: int, *assignments: str) -> RunKey:
    return run_key(SYNTHETIC, method, seed, assignments, tiny=True)


@pytest.fixture
def stubbed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[], list[list[str]]]:
    """Put the stub in the worker's place; returns what the stubs did so far."""
    trace = tmp_path / "trace"
    trace.touch()
    monkeypatch.setenv("TRACE", str(trace))
    monkeypatch.setattr(processes, "COMMAND", [sys.executable, str(STUB)])
    return lambda: [line.split() for line in trace.read_text().splitlines()]


def test_all_trials_are_tried_once(stubbed: Callable[[], list[list[str]]], tmp_path: Path) -> None:
    trials = [trial(method, seed) for seed in (0, 1, 2, 4, 5) for method in ("plain", "atom")]
    events: list[Event] = []
    report = run_sweep([*trials, *trials[:3]], tmp_path, CPU, 2, events.append)

    assert {(r["method"], r["seed"]) for r in report.results} == {
        (key.method, key.seed) for key in trials if key.seed in (0, 4, 5)
    }
    reasons = {(failure.key.method, failure.key.seed): failure.reason for failure in report.failed}
    assert reasons.keys() == {(m, s) for m in ("plain", "atom") for s in (1, 2)}
    assert reasons["atom", 1] == "out of luck"
    assert "ended by SIGKILL" in reasons["plain", 2]
    assert not report.stopped
    begun = [(method, seed) for word, method, seed, _ in stubbed() if word == "begins"]
    assert len(begun) == len(set(begun)) == len(trials)
    assert len({pid for *_, pid in stubbed()}) >= 3, "the dead are replaced"

    done = [event.done for event in events if event.kind in ("finished", "failed")]
    assert events[-1].total == len(trials)
    assert events[-1].failed == 4
    assert max(done) == len(trials)
    assert all(0 <= event.done <= event.total for event in events)

    again = run_sweep(trials, tmp_path, CPU, 2)
    assert again.skipped == 6
    assert len(again.results) == 6
    assert len(again.failed) == 4, "what failed is tried again"


def test_ctrl_c_stops_the_workers_and_keeps_what_is_done(
    stubbed: Callable[[], list[list[str]]], tmp_path: Path
) -> None:
    trials = [trial("atom", seed) for seed in (0, 3, 4)]
    kinds = []

    def interrupt(event: Event) -> None:
        kinds.append(event.kind)
        if event.kind == "progressed" and event.key.seed == 3:
            os.kill(os.getpid(), signal.SIGINT)

    report = run_sweep(trials, tmp_path, CPU, 1, interrupt)
    assert report.stopped
    assert [r["seed"] for r in report.results] == [0]
    assert [key.seed for key in report.left] == [3, 4]
    assert kinds[-2:] == ["stopping", "stopped"]
    assert not report.failed


def most_at_a_time(trace: list[list[str]]) -> int:
    """The most trials that trained at the same time."""
    running, most = 0, 0
    for word, *_ in trace:
        running += {"begins": 1, "ends": -1, "lacks": -1}.get(word, 0)
        most = max(most, running)
    return most


def test_as_many_run_as_memory_holds(
    stubbed: Callable[[], list[list[str]]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweep, "cores", lambda: 6)
    monkeypatch.setattr(sweep.Sweep, "_is_worth_hiring", lambda _: True)
    monkeypatch.setenv("ROOM", "100")
    trials = [trial("atom", seed, "epochs=29") for seed in range(10, 22)]
    events: list[Event] = []
    report = run_sweep(trials, tmp_path, CPU, None, events.append)
    assert len(report.results) == 12
    assert not report.failed
    words = [word for word, *_ in stubbed()]
    assert most_at_a_time(stubbed()) == 3, "nine tenths of the room hold three"
    assert max(event.running for event in events) == 3
    assert words[:2] == ["begins", "trains"], "the first one runs alone until it is measured"
    assert "lacks" not in words


def test_as_many_run_as_there_are_cores(
    stubbed: Callable[[], list[list[str]]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweep, "cores", lambda: 2)
    monkeypatch.setattr(sweep.Sweep, "_is_worth_hiring", lambda _: True)
    monkeypatch.setenv("ROOM", "1000")
    run_sweep([trial("atom", seed) for seed in range(10, 16)], tmp_path, CPU, None)
    assert most_at_a_time(stubbed()) == 2


def test_a_number_of_jobs_is_that_number(
    stubbed: Callable[[], list[list[str]]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More than there are cores; the trials end when the sweep is stopped."""
    monkeypatch.setattr(sweep, "cores", lambda: 2)
    trials = [trial("atom", 3, f"epochs={epochs}") for epochs in range(1, 7)]
    running: list[int] = []

    def interrupt(event: Event) -> None:
        running.append(event.running)
        if running.count(4) == 1 and event.running == 4:
            os.kill(os.getpid(), signal.SIGINT)

    assert run_sweep(trials, tmp_path, CPU, 4, interrupt).left == trials
    assert max(running) == 4
    assert sum(word == "begins" for word, *_ in stubbed()) == 4


@pytest.mark.parametrize(("startup", "several"), [(0.0, True), (1e6, False)])
def test_without_a_gpu_a_worker_must_save_time(
    stubbed: Callable[[], list[list[str]]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    startup: float,
    several: bool,
) -> None:
    monkeypatch.setattr(sweep, "cores", lambda: 4)
    fixed = property(lambda _: startup, lambda *_: None)
    monkeypatch.setattr(sweep.Sweep, "startup", fixed, raising=False)
    trials = [trial("atom", seed) for seed in (0, *range(10, 20))]
    monkeypatch.setenv("ROOM", "1000")
    assert len(run_sweep(trials, tmp_path, CPU, None).results) == 11
    assert (len({pid for *_, pid in stubbed()}) > 1) == several
    assert (most_at_a_time(stubbed()) > 1) == several


def test_memory_for_idle_workers_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep, "cores", lambda: 6)
    monkeypatch.setattr(sweep, "count_gpus", lambda _: 1)
    monkeypatch.setattr(sweep, "free_memory", lambda: int(2.5 * sweep.IDLE))
    hired = sweep.Sweep(Path("runs"), CPU, None)
    hired.ledger = Ledger({}, Path("runs"), lambda event: None)
    hired.ledger.waiting.extend(trial("atom", seed) for seed in range(9))
    monkeypatch.setattr(
        hired, "_hire", lambda number: hired.workers.append(SimpleNamespace(ready=False, key=None))
    )
    hired._make_room()
    hired._hire_more()
    assert hired.jobs == 5, "a core is left"
    assert len(hired.workers) == 2


def test_out_of_memory_beside_others_is_tried_again(
    stubbed: Callable[[], list[list[str]]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROOM", "100")
    trials = [trial("atom", seed, "epochs=40") for seed in range(10, 18)]
    kinds = []
    report = run_sweep(trials, tmp_path, CPU, 5, lambda event: kinds.append(event.kind))
    assert len(report.results) == 8
    assert not report.failed
    assert 1 <= kinds.count("returned") <= 8, "fewer run beside it then"

    large = [trial("plain", seed, "epochs=101") for seed in (10, 11)]
    report = run_sweep([*large, trial("plain", 12)], tmp_path, CPU, 3)
    assert {(failure.key.seed, failure.reason) for failure in report.failed} == {
        (10, "out of memory"),
        (11, "out of memory"),
    }
    assert [result["seed"] for result in report.results] == [12]


@pytest.mark.parametrize("jobs", [4, None])
def test_after_a_trial_that_is_too_large_others_run_side_by_side(
    stubbed: Callable[[], list[list[str]]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    jobs: int | None,
) -> None:
    monkeypatch.setattr(sweep, "cores", lambda: 4)
    monkeypatch.setattr(sweep.Sweep, "_is_worth_hiring", lambda _: True)
    monkeypatch.setenv("ROOM", "100")
    large = trial("plain", 10, "epochs=101")
    report = run_sweep([large, *(trial("atom", s) for s in range(10, 26))], tmp_path, CPU, jobs)
    assert [failure.key for failure in report.failed] == [large]
    words = [word for word, *_ in stubbed()]
    last = len(words) - words[::-1].index("lacks")
    assert most_at_a_time(stubbed()[last:]) > 1


@pytest.mark.parametrize("losses", [1, RETRIES, RETRIES + 1])
def test_a_trial_that_lost_the_server_of_mps_is_tried_again_by_a_new_process(
    stubbed: Callable[[], list[list[str]]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    losses: int,
) -> None:
    monkeypatch.setenv("LOSSES", str(losses))
    lost, other = trial("atom", 7), trial("atom", 0)
    kinds = []
    report = run_sweep([lost, other], tmp_path, CPU, 2, lambda event: kinds.append(event.kind))
    processes = [int(pid) for word, _, _, pid in stubbed() if word == "begins"]
    assert len(set(processes)) == len(processes) == 2 + min(losses, RETRIES), "idle ones leave too"
    assert kinds.count("returned") == min(losses, RETRIES)
    if losses > RETRIES:
        assert [(failure.key, failure.reason) for failure in report.failed] == [(lost, "no server")]
    assert [result["seed"] for result in report.results] == ([7, 0] if losses <= RETRIES else [0])


def test_one_trial_of_an_experiment_fetches_its_data(
    stubbed: Callable[[], list[list[str]]], tmp_path: Path
) -> None:
    machine = Machine(device="cpu", download=True)
    run_sweep([trial("atom", seed) for seed in (4, 5, 6)], tmp_path, machine, 2)
    words = [word for word, *_ in stubbed()]
    assert words[:2] == ["begins", "trains"], "the others begin when the first one trains"


def test_a_broken_result_fails_alone(
    stubbed: Callable[[], list[list[str]]], tmp_path: Path
) -> None:
    broken = trial("atom", 0)
    broken.folder(tmp_path).mkdir(parents=True)
    Run(broken.folder(tmp_path)).result.write_text("nonsense")
    report = run_sweep([broken, trial("plain", 0)], tmp_path, CPU)
    assert [r["method"] for r in report.results] == ["plain"]
    assert "is not a result (Expecting value" in report.failed[0].reason


def test_errors_are_sentences(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    key = trial("atom", 0)
    with pytest.raises(ExperimentError, match="--jobs must be at least 1, not 0"):
        run_sweep([key], tmp_path, CPU, 0)
    with pytest.raises(ExperimentError, match="each run on one device, not on 4"):
        run_sweep([key], tmp_path, Machine(devices=4))
    (tmp_path / "file").write_text("")
    with pytest.raises(ExperimentError, match="file cannot be written"):
        run_sweep([key], tmp_path / "file", CPU)
    broken = [sys.executable, "-c", "raise SystemExit('no such library')"]
    monkeypatch.setattr(processes, "COMMAND", broken)
    with pytest.raises(ExperimentError, match="no worker can be started: .*no such library"):
        run_sweep([key], tmp_path, CPU, 2)
    assert run_sweep([], tmp_path, CPU).results == []


def test_cores_and_gpus_are_shared_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    assert environment(0, 1, "cpu") == {}
    assert environment(0, 3, "cpu") == {"OMP_NUM_THREADS": "2"}
    assert environment(3, 16, "auto") == {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "1"}
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,7")
    assert environment(2, 1, "cuda")["CUDA_VISIBLE_DEVICES"] == "5"


def test_real_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One is killed in a trial, the next is stopped in another: nothing is lost."""
    killed, bad, short = (
        trial("atom", 0, "epochs=30"),
        trial("atom", 2, "layer=x"),
        trial("simclr", 1),
    )
    stopped, untouched = trial("plain", 0, "epochs=30"), trial("plain", 5)
    hired: list[WorkerProcess] = []
    kinds: list[str] = []

    class Recorded(WorkerProcess):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            hired.append(self)

    def disturb(event: Event) -> None:
        kinds.append(event.kind)
        if event.kind == "progressed" and event.key == killed:
            hired[0].process.kill()
        elif event.kind == "progressed" and event.key == stopped and "stopping" not in kinds:
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(sweep, "WorkerProcess", Recorded)
    trials = [killed, bad, short, stopped, untouched]
    report = run_sweep(trials, tmp_path, CPU, 1, disturb)
    assert len(hired) == 2
    assert kinds[-1] == "stopped"
    assert report.left == [stopped, untouched]
    assert [failure.key for failure in report.failed] == [killed, bad]
    assert "SIGKILL" in report.failed[0].reason
    assert report.failed[1].reason.startswith("layer 'x' matches nothing")
    assert "Traceback" in report.failed[1].log.read_text()

    [result] = report.results
    assert result["metrics"] == train(SYNTHETIC, short, tmp_path / "unbroken", CPU)["metrics"]
    for key in (killed, stopped):
        run = Run(key.folder(tmp_path))
        state = run.load_checkpoint(torch.device("cpu"))
        assert (0, 0) < (state["epoch"], state["step"]) < (30, 0)
        unbroken = train(SYNTHETIC, key, tmp_path / "unbroken", CPU)
        assert train(SYNTHETIC, key, tmp_path, CPU)["metrics"] == unbroken["metrics"]
        lines, expected = (
            [{**line, "seconds": 0} for line in read_metrics(key.folder(root), start=True)]
            for root in (tmp_path, tmp_path / "unbroken")
        )
        assert lines == expected
