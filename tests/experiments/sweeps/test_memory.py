"""Memory: what is measured, and whether another trial fits."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from atomsep.experiments.errors import ExperimentError
from atomsep.experiments.machine import Machine
from atomsep.experiments.sweeps import memory, sweep
from atomsep.experiments.sweeps.memory import Room, free_memory, is_out_of_memory, measure

MIB = 2**20


@pytest.mark.skipif(free_memory() is None, reason="this system does not say what is free")
def test_what_is_allocated_is_measured() -> None:
    held, free = measure()["host"][1:]
    block = torch.ones(256 * MIB, dtype=torch.uint8)
    _, now, left = measure()["host"]
    assert now - held == pytest.approx(block.numel(), rel=0.05)
    assert 0 < left < os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert free > 0


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_the_gpus_memory_is_measured() -> None:
    block = torch.ones(256 * MIB, dtype=torch.uint8, device="cuda")
    peak, held, free = measure()["cuda"]
    assert peak >= held >= block.numel() + memory.CONTEXT
    assert 0 < free < torch.cuda.get_device_properties(0).total_memory


def test_a_container_may_have_less(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "CONTAINERS", ((tmp_path, "memory.max", "memory.current"),))
    before = free_memory()
    if before is None:
        pytest.skip("this system does not say what is free")
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "memory.current").write_text(f"{70 * MIB}\n")
    assert free_memory() == pytest.approx(before, rel=0.2), "no limit"
    (tmp_path / "memory.max").write_text(f"{100 * MIB}\n")
    (tmp_path / "memory.stat").write_text(f"anon 1\ninactive_file {10 * MIB}\nactive_file 0\n")
    assert free_memory() == 40 * MIB, "files in memory can be dropped"


def learn(room: Room, worker: int, *measured: int, evaluated: bool = True, alone: bool) -> None:
    peak, held, free = measured
    room.learn(worker, (peak, held, free), evaluated=evaluated, alone=alone)


def most(room: Room) -> int:
    """Trials that may run at a time."""
    return next(running for running in range(100) if not room.fits(running))


def test_the_first_runs_alone_and_others_as_far_as_they_fit() -> None:
    room = Room(limit=8, measured=True)
    room.enter(0)
    assert most(room) == 1, "nothing is known yet"
    learn(room, 0, 10, 10, 90, evaluated=False, alone=True)
    assert most(room) == 4, "half of 90 of 100"
    learn(room, 0, 12, 10, 90, alone=True)
    assert most(room) == 7, "an evaluation took 12"
    room.enter(1)
    learn(room, 1, 12, 12, 60, alone=False)
    assert most(room) == 7
    room.enter(2)
    learn(room, 0, 12, 10, 23, alone=False)
    assert not room.fits(2), "another program took 37, and the third is not measured yet"
    room.forget(2)
    assert room.fits(2)
    learn(room, 0, 1000, 0, 10, alone=True)
    assert most(room) == 1, "alone, it may try"


def test_what_others_hold_may_be_out_of_date() -> None:
    """Three end at once, and two have not said so yet."""
    room = Room(limit=8, measured=True)
    learn(room, 0, 29, 29, 71, alone=True)
    for worker in (1, 2):
        learn(room, worker, 29, 29, 13, alone=False)
    learn(room, 0, 29, 0, 100, alone=False)
    assert most(room) == 3, "though 158 seem to be there"


def test_a_trial_that_failed_before_it_took_memory_says_nothing() -> None:
    room = Room(limit=3, measured=True)
    room.enter(0)
    room.learn(0, None, evaluated=False, alone=True)
    assert most(room) == 1
    learn(room, 0, 10, 10, 90, alone=True)
    room.learn(0, None, evaluated=False, alone=True)
    assert most(room) == 3, "what is known stays"


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("gpus", [0, 2])
@pytest.mark.parametrize("jobs", [2, None])
def test_what_can_be_measured_is(
    monkeypatch: pytest.MonkeyPatch, known: bool, gpus: int, jobs: int | None
) -> None:
    monkeypatch.setattr(sweep, "count_gpus", lambda _: gpus)
    monkeypatch.setattr(memory, "free_memory", lambda: MIB if known else None)
    monkeypatch.setattr(memory, "_resident", lambda: MIB)
    planned = sweep.Sweep(Path("runs"), Machine(), jobs)
    planned._make_room()
    assert planned.host.measured == (jobs is None and known)
    assert [room.measured for room in planned.gpus] == [jobs is None and gpus > 0] * max(1, gpus)


def test_a_room_that_cannot_be_measured_is_limited_by_number() -> None:
    fixed = Room(limit=3, measured=False)
    assert most(fixed) == 3
    fixed.ran_out(beside=2)
    assert most(fixed) == 2
    fixed.ran_out(beside=2)
    assert most(fixed) == 2


def test_what_a_trial_too_large_for_all_the_room_took_is_forgotten() -> None:
    room = Room(limit=8, measured=True)
    learn(room, 0, 10, 10, 90, alone=True)
    room.ran_out(beside=2)
    learn(room, 0, 101, 0, 100, alone=True)
    assert most(room) == 1
    room.recover()
    assert most(room) == 1, "the next one is measured alone"
    learn(room, 1, 10, 10, 90, evaluated=False, alone=True)
    assert most(room) == 4, "its evaluation may take more"
    learn(room, 1, 10, 10, 90, alone=True)
    assert most(room) == 8


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
        RuntimeError("CUDA error: out of memory\nCompile with TORCH_USE_CUDA_DSA"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate(handle)"),
        MemoryError(),
        OSError(12, "Cannot allocate memory"),
    ],
)
def test_errors_of_allocators_are_recognised(error: BaseException) -> None:
    assert is_out_of_memory(error)
    sentence = ExperimentError("the data set cannot be decoded")
    sentence.__cause__ = error
    assert is_out_of_memory(sentence)
    assert not is_out_of_memory(ExperimentError("layer 'x' matches nothing"))


def test_an_allocation_that_the_host_refuses_is_recognised() -> None:
    with pytest.raises(RuntimeError) as refused:
        torch.empty(2**55)
    assert is_out_of_memory(refused.value)
