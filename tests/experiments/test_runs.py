"""Runs on disk: who may write to a folder, and which results are believed."""

from __future__ import annotations

import fcntl
import json
import math
import os
import time
from pathlib import Path
from typing import Any

import pytest
from processes import start

from atomsep.experiments import training
from atomsep.experiments.errors import ExperimentError
from atomsep.experiments.machine import Machine, make_fabric
from atomsep.experiments.registry import find_experiment, run_key
from atomsep.experiments.runs import Run, RunKey, find_results

SYNTHETIC = find_experiment("synthetic")
KEY = run_key(SYNTHETIC, "plain", 0, tiny=True)
RESULT = {**KEY.record(), "metrics": {"accuracy": 0.5}, "unreadable": []}


def run(key: RunKey, root: Path) -> dict[str, Any]:
    return training.train(SYNTHETIC, key, root, Machine(tensorboard=False))


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < deadline, f"{path} does not appear"
        time.sleep(0.005)


def hold_the_lock(folder: Path, signs: Path, name: str) -> None:
    """Hold the lock of a run until a sign says to leave; the signs tell what happened."""
    try:
        with Run(folder).locked():
            (signs / f"{name} holds").touch()
            wait_for(signs / f"{name} may leave")
    except ExperimentError:
        (signs / f"{name} was refused").touch()


def test_two_processes_cannot_train_the_same_run(tmp_path: Path) -> None:
    folder = KEY.folder(tmp_path)
    process = start(hold_the_lock, folder, tmp_path, "first")
    wait_for(tmp_path / "first holds")
    with pytest.raises(ExperimentError, match="another process is training in"):
        run(KEY, tmp_path)
    process.kill()
    process.join()
    assert run(KEY, tmp_path)["metrics"], "a killed process holds nothing"


def pause_before_locking(folder: Path, signs: Path, name: str) -> None:
    """Open the lock's file, wait for a sign, and only then lock it."""
    lock = fcntl.lockf

    def late(*arguments: Any) -> None:
        fcntl.lockf = lock
        (signs / f"{name} has opened").touch()
        wait_for(signs / f"{name} may lock")
        lock(*arguments)

    fcntl.lockf = late
    hold_the_lock(folder, signs, name)


def test_a_lock_that_was_removed_locks_nobody_out(tmp_path: Path) -> None:
    """The first leaves nothing behind while the second has the file open; then comes a third."""
    folder = tmp_path / "experiment" / "method" / "seed-0"
    first = start(hold_the_lock, folder, tmp_path, "first")
    wait_for(tmp_path / "first holds")
    second = start(pause_before_locking, folder, tmp_path, "second")
    wait_for(tmp_path / "second has opened")
    (tmp_path / "first may leave").touch()
    first.join()
    assert not folder.exists()

    (tmp_path / "second may lock").touch()
    wait_for(tmp_path / "second holds")
    third = start(hold_the_lock, folder, tmp_path, "third")
    wait_for(tmp_path / "third was refused")
    (tmp_path / "second may leave").touch()
    for process in (second, third):
        process.join()
        assert process.exitcode == 0
    assert not (tmp_path / "experiment").exists()


def test_a_folder_that_cannot_be_made_is_named() -> None:
    folder = Path("/proc/no-such-folder/seed-0")
    with pytest.raises(ExperimentError, match="seed-0 cannot be written"), Run(folder).locked():
        pass


def test_a_file_in_the_place_of_the_folder_is_named(tmp_path: Path) -> None:
    file = tmp_path / "a.jpg"
    file.touch()
    with pytest.raises(ExperimentError, match=r"a.jpg is a file, not a folder of runs; .* --out"):
        run(KEY, file)


def train_late(root: Path, signs: Path) -> None:
    """Train, but pause between the first look at the result and the lock."""

    def paused(*arguments: Any) -> Any:
        (signs / "late has looked").touch()
        wait_for(signs / "late may train")
        return make_fabric(*arguments)

    training.make_fabric = paused
    (signs / "late result").write_text(json.dumps(run(KEY, root)))


def test_what_another_process_has_just_finished_is_not_trained_again(tmp_path: Path) -> None:
    late = start(train_late, tmp_path, tmp_path)
    wait_for(tmp_path / "late has looked")
    result = run(KEY, tmp_path)
    model = Run(KEY.folder(tmp_path)).model
    before = os.stat(model)
    (tmp_path / "late may train").touch()
    late.join()
    assert json.loads((tmp_path / "late result").read_text()) == result
    assert os.path.samestat(os.stat(model), before), "the model was not written again"


def write_result(folder: Path, text: str) -> Run:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "result.json").write_text(text)
    return Run(folder)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"metrics": None}, "it has no 'metrics'"),
        ({"settings": None}, "it has no 'settings'"),
        ({"seed": None}, "it has no 'seed'"),
        ({"seed": "0"}, "'seed' is not a whole number"),
        ({"seed": math.nan}, "'seed' is not a whole number"),
        ({"seed": True}, "'seed' is not a whole number"),
        ({"settings": []}, "'settings' is not an object"),
        ({"metrics": 0.5}, "'metrics' is not an object"),
        ({"metrics": {}}, "it has no metrics"),
        ({"metrics": {"accuracy": "high"}}, "the metric 'accuracy' is not a number"),
        ({"metrics": {"accuracy": True}}, "the metric 'accuracy' is not a number"),
        ({"metrics": {"accuracy": 10**400}}, "int too large"),
        ({"experiment": 5}, "'experiment' is not a text"),
        ({"experiment": "../../elsewhere"}, "'experiment' is not a name: '../../elsewhere'"),
        ({"method": ""}, "'method' is not a name: ''"),
        ({"tiny": "yes"}, "'tiny' is not true or false"),
        ({"unreadable": 3}, "'unreadable' is not a list"),
    ],
)
def test_a_file_that_is_not_a_result_is_named(
    tmp_path: Path, change: dict[str, Any], reason: str
) -> None:
    result = {**RESULT, **change}
    result = {name: value for name, value in result.items() if value is not None}
    broken = write_result(tmp_path / "broken", json.dumps(result))
    with pytest.raises(ExperimentError) as error:
        find_results(tmp_path)
    assert str(error.value).startswith(f"{broken.result} is not a result ({reason}")
    assert str(error.value).endswith("; remove it to train the run again")


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "3", "[" * 100_000, "\x00"])
def test_a_file_that_is_not_json_is_named(tmp_path: Path, text: str) -> None:
    with pytest.raises(ExperimentError, match="result.json is not a result"):
        write_result(tmp_path, text).read_result()


def test_a_result_needs_no_more_than_tables_do(tmp_path: Path) -> None:
    small = {name: value for name, value in RESULT.items() if name not in ("unreadable", "tiny")}
    assert write_result(tmp_path, json.dumps(small)).read_result() == {**small, "unreadable": []}
    (tmp_path / "folder" / "result.json").mkdir(parents=True)
    with pytest.raises(ExperimentError, match="Is a directory"):
        Run(tmp_path / "folder").read_result()
