"""A run that crashed, was killed or interrupted continues, and ends as an unbroken one does."""

from __future__ import annotations

import os
import signal
import threading
import time
from functools import partialmethod
from pathlib import Path
from typing import Any

import pytest
import torch
from mixture_runs import SAMPLED, SYNTHETIC, StopAt, run, tiny, weights, without_times
from processes import start
from tiny_runs import read_metrics

from atomsep.experiments.errors import ExperimentError, StoppedError
from atomsep.experiments.machine import Machine
from atomsep.experiments.registry import find_experiment, run_key
from atomsep.experiments.runs import Run, RunKey
from atomsep.experiments.training import train


@pytest.mark.parametrize("method", ["atom", "simclr"])
def test_a_crashed_run_continues_and_ends_bit_for_bit_as_an_unbroken_one(
    tmp_path: Path, method: str
) -> None:
    options = ("epochs=4", "evaluate_every=1", *(SAMPLED if method == "atom" else ()))
    key = tiny(method, 0, *options)
    unbroken = run(key, tmp_path / "unbroken")
    machine = Machine(tensorboard=False, checkpoint_seconds=0)
    for epoch in (1, 3):
        with pytest.raises(MemoryError):
            train(SYNTHETIC, key, tmp_path / "broken", machine, StopAt(epoch))
    broken = train(SYNTHETIC, key, tmp_path / "broken", machine)
    assert broken["metrics"] == unbroken["metrics"]
    folders = [key.folder(tmp_path / each) for each in ("unbroken", "broken")]
    lines = [read_metrics(folder, start=True) for folder in folders]
    assert [line["step"] for line in lines[0]] == [1, 4, 8, 12, 16]
    assert [without_times(x) for x in lines[0]] == [without_times(x) for x in lines[1]]
    assert broken["strength_at_start"] == unbroken["strength_at_start"] != {}
    for name, value in weights(key, tmp_path / "broken").items():
        assert torch.equal(value, weights(key, tmp_path / "unbroken")[name]), name


@pytest.mark.parametrize(("name", "method"), [("pets", "simclr"), ("cola", "mixcse")])
def test_images_and_text_continue_bit_for_bit(tmp_path: Path, name: str, method: str) -> None:
    experiment = find_experiment(name)
    key = run_key(experiment, method, 0, ("evaluate_every=1",), tiny=True)
    machine = Machine(tensorboard=False, workers=1, checkpoint_seconds=0)
    unbroken = train(experiment, key, tmp_path / "unbroken", machine)
    with pytest.raises(MemoryError):
        train(experiment, key, tmp_path / "broken", machine, StopAt(1))
    broken = train(experiment, key, tmp_path / "broken", machine)
    assert broken["metrics"] == unbroken["metrics"]
    for part, value in weights(key, tmp_path / "broken").items():
        assert torch.equal(value, weights(key, tmp_path / "unbroken")[part]), part


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")
def test_a_compiled_run_continues_bit_for_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In processes of their own, models are compiled again; so they are here."""
    compiled = partialmethod(torch.nn.Module.compile, backend="aot_eager")
    monkeypatch.setattr(torch.nn.Module, "compile", compiled)
    key = tiny("atom", 0, "epochs=3", "evaluate_every=1", "compile=true")
    machine = Machine(tensorboard=False, checkpoint_seconds=0)
    unbroken = run(key, tmp_path / "unbroken")
    torch.compiler.reset()
    with pytest.raises(MemoryError):
        train(SYNTHETIC, key, tmp_path / "broken", machine, StopAt(2))
    torch.compiler.reset()
    assert run(key, tmp_path / "broken")["metrics"] == unbroken["metrics"]
    for name, value in weights(key, tmp_path / "broken").items():
        assert torch.equal(value, weights(key, tmp_path / "unbroken")[name]), name


def test_a_damaged_checkpoint_is_named(tmp_path: Path) -> None:
    key = tiny()
    folder = key.folder(tmp_path)
    folder.mkdir(parents=True)
    (folder / "checkpoint.pt").write_bytes(b"PK\x03\x04 half of one")
    with pytest.raises(
        ExperimentError, match="checkpoint.pt cannot be used .* remove it to start the run over"
    ):
        run(key, tmp_path)


def test_a_run_that_crashed_before_its_first_checkpoint_has_one_line_of_its_start(
    tmp_path: Path,
) -> None:
    key = tiny("atom")
    with pytest.raises(MemoryError):
        train(SYNTHETIC, key, tmp_path, Machine(tensorboard=False), StopAt(1))
    assert [line["step"] for line in read_metrics(key.folder(tmp_path), start=True)] == [1]
    run(key, tmp_path)
    assert [line["step"] for line in read_metrics(key.folder(tmp_path), start=True)] == [1, 4, 8]


def spoil_nothing(state: dict[str, Any]) -> None:
    """The checkpoint as it was written."""


def spoil_a_part(state: dict[str, Any]) -> None:
    del state["parts"]["optimiser"]


def spoil_a_shape(state: dict[str, Any]) -> None:
    state["parts"]["model"]["head.weight"] = torch.zeros(3)


def spoil_the_lines(state: dict[str, Any]) -> None:
    state["lines"] = []


def spoil_a_line(state: dict[str, Any]) -> None:
    state["lines"] = [line.replace('"step": 4', '"step": 3') for line in state["lines"]]


@pytest.mark.parametrize(
    "spoil",
    [
        *(spoil_nothing, spoil_a_part, spoil_a_shape, spoil_the_lines, spoil_a_line),
        *(lambda state: state.pop("meter"), lambda state: state.update(epoch="third")),
        *(lambda state: state.update(parts=[]), lambda state: state.clear()),
    ],
)
def test_a_checkpoint_that_lacks_something_is_named(tmp_path: Path, spoil: Any) -> None:
    key = tiny("plain", 0, "evaluate_every=1")
    machine = Machine(tensorboard=False, checkpoint_seconds=0)
    with pytest.raises(MemoryError):
        train(SYNTHETIC, key, tmp_path, machine, StopAt(2))
    on_disk = Run(key.folder(tmp_path))
    state = on_disk.load_checkpoint(torch.device("cpu"))
    assert state is not None
    spoil(state)
    torch.save(state, on_disk.checkpoint)
    if spoil is spoil_nothing:
        assert run(key, tmp_path)["metrics"]
        return
    with pytest.raises(ExperimentError, match=r"checkpoint.pt cannot be used \(\w+Error"):
        run(key, tmp_path)
    on_disk.checkpoint.unlink()
    assert run(key, tmp_path)["metrics"], "as the message says, it starts over"


def train_with_checkpoints(key: RunKey, root: Path) -> None:
    run(key, root, checkpoint_seconds=0.05)


def test_killed_at_any_moment_it_ends_the_same(tmp_path: Path) -> None:
    """kill -9 of a real process, three times, somewhere."""
    key = tiny("atom", 0, "epochs=60", "train_samples=512", *SAMPLED)
    unbroken = run(key, tmp_path / "unbroken")
    root = tmp_path / "killed"
    folder = key.folder(root)
    for _ in range(3):
        before = len(read_metrics(folder))
        process = start(train_with_checkpoints, key, root)
        while len(read_metrics(folder)) <= before + 2 and process.is_alive():
            time.sleep(0.005)
        process.kill()
        process.join()
        assert process.exitcode == -signal.SIGKILL
    state = Run(folder).load_checkpoint(torch.device("cpu"))
    assert state is not None
    assert 0 < state["epoch"] < 60
    (folder / ".checkpoint.pt.1.part").write_text("half a checkpoint")
    result = run(key, root, checkpoint_seconds=1000)
    assert not list(folder.glob(".*.part"))
    assert result["metrics"] == unbroken["metrics"]
    assert without_times(result["last_epoch"]) == without_times(unbroken["last_epoch"])
    for name, value in weights(key, root).items():
        assert torch.equal(value, weights(key, tmp_path / "unbroken")[name]), name


def test_interrupted_it_stops_between_steps_with_a_checkpoint(tmp_path: Path) -> None:
    key = tiny("plain", 0, "epochs=2000")

    def interrupt() -> None:
        while not read_metrics(key.folder(tmp_path)):
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(StoppedError, match="stopped in epoch .* with a checkpoint"):
        run(key, tmp_path, checkpoint_seconds=1000)
    thread.join()
    state = Run(key.folder(tmp_path)).load_checkpoint(torch.device("cpu"))
    assert state is not None
    assert state["epoch"] > 0
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
