"""The cores of a sweep: how many runs they are planned for, and the threads of each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from atomsep.experiments.machine import Machine
from atomsep.experiments.registry import run_key
from atomsep.experiments.runs import RunKey
from atomsep.experiments.sweeps import processes, sweep
from atomsep.experiments.sweeps.sweep import run_sweep
from atomsep.experiments.synthetic.experiment import SYNTHETIC

CPU = Machine(device="cpu", tensorboard=False)


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> list[str | None]:
    """Threads that each worker on eight cores is given; None: all of them."""
    given: list[str | None] = []

    class Recorded(processes.WorkerProcess):
        def __init__(self, number: int, jobs: int, device: str) -> None:
            given.append(processes.environment(number, jobs, device).get("OMP_NUM_THREADS"))
            super().__init__(number, jobs, device)

    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(sweep, "WorkerProcess", Recorded)
    for module in (sweep, processes):
        monkeypatch.setattr(module, "cores", lambda: 8)
    stub = [processes.COMMAND[0], str(Path(__file__).with_name("stub_worker.py"))]
    monkeypatch.setattr(processes, "COMMAND", stub)
    return given


def trials(number: int) -> list[RunKey]:
    return [run_key(SYNTHETIC, "atom", seed, tiny=True) for seed in range(4, 4 + number)]


@pytest.mark.parametrize(
    ("jobs", "number", "expected"),
    [(None, 1, None), (None, 2, "4"), (None, 3, "2"), (None, 6, "1"), (4, 2, "2")],
)
def test_few_trials_share_the_cores(
    threads: list[Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    jobs: int | None,
    number: int,
    expected: str | None,
) -> None:
    monkeypatch.setenv("TRACE", str(tmp_path / "trace"))
    keys = trials(number)
    assert len(run_sweep([*keys, *keys], tmp_path, CPU, jobs).results) == number
    assert set(threads) == {expected}


def test_a_sweep_that_continues_uses_as_many_threads(
    threads: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRACE", str(tmp_path / "trace"))
    run_sweep(trials(3), tmp_path, CPU, None)
    threads.clear()
    report = run_sweep(trials(4), tmp_path, CPU, None)
    assert report.skipped == 3
    assert threads == ["2"], "planned for four, though one is left"
