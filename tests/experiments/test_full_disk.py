"""A real limit on the size of files, which fails as a full disk does."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from processes import start

from atomsep.experiments.board import tensorboard
from atomsep.experiments.errors import ExperimentError
from atomsep.experiments.files import write_state
from atomsep.experiments.machine import Machine
from atomsep.experiments.registry import find_experiment, run_key
from atomsep.experiments.training import train

SYNTHETIC = find_experiment("synthetic")
KEY = run_key(SYNTHETIC, "plain", 0, tiny=True)
ADVICE = (
    "cannot be written (File too large); free some space and repeat the command: the run "
    "continues from its last checkpoint"
)


def limit_files(size: int) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


def atomsep(folder: Path, size: int, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The command line, whose files may have so many bytes."""
    command = [sys.executable, "-m", "atomsep", *arguments]
    return subprocess.run(
        command, cwd=folder, capture_output=True, text=True, preexec_fn=lambda: limit_files(size)
    )


def say_what_fails(action: str, path: Path, size: int) -> None:
    limit_files(size)
    try:
        if action == "train":
            train(SYNTHETIC, KEY, path, Machine(tensorboard=False, checkpoint_seconds=0))
        elif action == "state":
            write_state(path / "state.pt", {"weight": torch.zeros(1_000_000)})
        else:
            with tensorboard(path / "board", 1) as board:
                for epoch in range(1000):
                    board.add("accuracy", 0.5, epoch)
    except ExperimentError as error:
        (path / "said").write_text(str(error))


def test_a_checkpoint_leaves_no_half_file(tmp_path: Path) -> None:
    process = start(say_what_fails, "train", tmp_path, 2500)
    process.join()
    assert (tmp_path / "said").read_text().endswith(f"checkpoint.pt {ADVICE}")
    folder = KEY.folder(tmp_path)
    whole = {".lock", "config.json", "distances.npz", "metrics.jsonl"}
    assert {path.name for path in folder.iterdir()} == whole


@pytest.mark.parametrize("size", [2500, 100_000, 3_999_000])
def test_what_torchs_writer_hides_is_said(tmp_path: Path, size: int) -> None:
    """Larger than a buffer, so that the error comes in the middle of torch's writing."""
    process = start(say_what_fails, "state", tmp_path, size)
    process.join()
    assert (tmp_path / "said").read_text() == f"{tmp_path / 'state.pt'} {ADVICE}"
    assert [path.name for path in tmp_path.iterdir()] == ["said"]


def test_what_tensorboards_thread_meets_is_said(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    process = start(say_what_fails, "board", tmp_path, 2500)
    process.join()
    assert (tmp_path / "said").read_text() == f"{tmp_path / 'board'} {ADVICE}"
    assert process.exitcode == 0
    assert capfd.readouterr().err == ""


def test_train_says_it_without_a_traceback(tmp_path: Path) -> None:
    done = atomsep(tmp_path, 2500, "train", "synthetic", "--tiny", "--set", "epochs=40")
    assert done.returncode == 1
    assert done.stderr.startswith("atomsep: runs/synthetic-tiny/atom-")
    assert done.stderr.endswith(f"{ADVICE}\n")
    assert done.stderr.count("\n") == 1


def test_sweep_says_it_though_its_log_is_full_too(tmp_path: Path) -> None:
    arguments = ("--methods", "plain", "--seeds", "1")
    done = atomsep(tmp_path, 300, "sweep", "synthetic", "--tiny", *arguments)
    assert done.returncode == 1
    assert "Failed: plain, seed 0: runs/synthetic-tiny/plain-" in done.stdout
    assert ADVICE in done.stdout
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("arguments", ["list", "list flowers", "--version"])
def test_output_that_cannot_be_written_is_said(arguments: str) -> None:
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "atomsep", *arguments.split()]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 1
    assert done.stderr == ("atomsep: [Errno 28] No space left on device; --debug shows where\n")
