"""A run on disk: its configuration, metrics, checkpoint and result.

    runs/flowers/atom-1a2b3c4d/seed-0/
        config.json     what was asked for, versions, commit, machine
        metrics.jsonl   a line for every epoch
        checkpoint.pt   where to go on, gone when the run is finished
        model.pt        state dictionaries of the trained models, by name
        result.json     there when the run is finished, and not before

Every file is whole at any moment: it is written beside and then put in place.
"""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import platform
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from torch import nn

from atomsep.experiments.errors import ExperimentError
from atomsep.experiments.settings import Settings

LIBRARIES = (
    *("atomsep", "torch", "torchvision", "transformers", "lightning", "torchmetrics"),
    *("torch-fidelity", "numpy"),
)


@dataclasses.dataclass(frozen=True)
class RunKey:
    """What tells a run from all others."""

    experiment: str
    method: str
    seed: int
    settings: Settings
    tiny: bool = False
    validation: bool = False

    def folder(self, root: Path) -> Path:
        """Where the run lies under the folder of all runs."""
        name = self.experiment + ("-tiny" if self.tiny else "")
        parts = [name, "validation"] if self.validation else [name]
        return root.joinpath(*parts, f"{self.method}-{self.settings.digest()}", f"seed-{self.seed}")

    def record(self) -> dict[str, Any]:
        """As it is written to disk."""
        return {
            "experiment": self.experiment,
            "method": self.method,
            "seed": self.seed,
            "tiny": self.tiny,
            "validation": self.validation,
            "settings": dataclasses.asdict(self.settings),
        }


class Run:
    """The folder of one run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.config = folder / "config.json"
        self.metrics = folder / "metrics.jsonl"
        self.checkpoint = folder / "checkpoint.pt"
        self.model = folder / "model.pt"
        self.result = folder / "result.json"

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes out of the folder. The lock goes with the process, however it ends.

        Raises:
            ExperimentError: another process holds it.
        """
        import fcntl

        with saying(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            file = open(self.folder / ".lock", "w")  # noqa: SIM115
        with file:
            try:
                # Not flock, which processes that load data would hold on to for a while.
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise ExperimentError(
                    f"another process is training in {self.folder}; wait for it, or choose another "
                    f"folder with --out"
                ) from None
            for part in self.folder.glob(".*.part"):  # what a killed process was writing
                part.unlink()
            try:
                yield
            finally:
                self._leave_nothing_empty()

    def _leave_nothing_empty(self) -> None:
        """Take away the folders of a run that wrote nothing."""
        if [path.name for path in self.folder.iterdir()] == [".lock"]:
            (self.folder / ".lock").unlink()
            for folder in (self.folder, *self.folder.parents[:2]):
                if any(folder.iterdir()):
                    return
                folder.rmdir()

    def read_result(self) -> dict[str, Any] | None:
        """The result, or None if the run is not finished.

        Raises:
            ExperimentError: the file holds something else.
        """
        if not self.result.exists():
            return None
        try:
            result = json.loads(self.result.read_text(encoding="utf-8"))
            result["metrics"], result["experiment"], result["method"], result["seed"]
        except (ValueError, KeyError, TypeError):
            raise ExperimentError(
                f"{self.result} is not a result; remove it, and the run is made again"
            ) from None
        return dict(result)

    def read_metrics(self) -> list[dict[str, Any]]:
        """The lines of metrics so far."""
        if not self.metrics.exists():
            return []
        return [json.loads(line) for line in self.metrics.read_text().splitlines()]

    def save_checkpoint(self, state: Mapping[str, Any]) -> None:
        """Put a checkpoint in the place of the last one."""
        _save(dict(state), self.checkpoint)

    def save_model(self, parts: Mapping[str, Any]) -> None:
        """Keep the trained models and what a method learned, without optimisers."""
        models = {}
        for name, part in parts.items():
            module = getattr(part, "method", part)  # of a method on a layer
            if isinstance(module, nn.Module) and module.state_dict():
                models[name] = module.state_dict()
        _save(models, self.model)

    def load_checkpoint(self, device: torch.device) -> dict[str, Any] | None:
        """The last checkpoint, or None."""
        if not self.checkpoint.exists():
            return None
        try:
            state: dict[str, Any] = torch.load(
                self.checkpoint, map_location=device, weights_only=True
            )
            state["parts"], state["epoch"], state["step"]
        except Exception as error:  # a damaged file can break its reader anywhere
            raise ExperimentError(
                f"{self.checkpoint} is damaged ({type(error).__name__}); remove it, and the run "
                f"starts anew"
            ) from error
        return state


@contextmanager
def replacing(path: Path, *, durable: bool = True) -> Iterator[Path]:
    """Write a file beside its place and then put it there, so that a reader finds it whole.

    Not durable, a power cut may leave the old one.
    """
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        yield part
        if durable:
            with open(part, "rb") as file:
                os.fsync(file.fileno())
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def write_whole(path: Path, text: str, *, durable: bool = True) -> None:
    """Write a text file so that a reader finds the old text or the new one, never a part."""
    with saying(path), replacing(path, durable=durable) as part:
        part.write_text(text, encoding="utf-8")


def _save(state: dict[str, Any], path: Path) -> None:
    # Through a file of Python's, whose errors say what is wrong; torch's own do not.
    with saying(path), replacing(path) as part, open(part, "wb") as file:
        torch.save(state, file)


@contextmanager
def saying(path: Path) -> Iterator[None]:
    """Turn what the file system refuses into a sentence."""
    try:
        yield
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        advice = "free some space" if full else "see to it"
        raise ExperimentError(
            f"{path} cannot be written ({error.strerror}); {advice} and give the same command "
            f"again: it goes on from the last checkpoint"
        ) from error


def surroundings() -> dict[str, Any]:
    """Versions, the commit and the machine, for the record."""
    versions = {"python": platform.python_version()}
    for name in LIBRARIES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    machine = {
        "system": platform.platform(),
        "processor": _processor(),
        "threads": torch.get_num_threads(),
    }
    if torch.cuda.is_available():
        machine["gpu"] = torch.cuda.get_device_name()
    return {"versions": versions, "commit": commit(), "machine": machine}


def commit() -> str | None:
    """The git commit of atomsep's own source, with "+" if it was changed; None outside git."""
    here = Path(__file__).parent

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(here), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        changed = git("status", "--porcelain", "--", str(here.parent))
        return git("rev-parse", "HEAD") + ("+" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return None


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if "model name" in line)
    except (OSError, StopIteration):
        return platform.processor()


def find_results(root: Path, *, validation: bool = False) -> list[dict[str, Any]]:
    """The results of all finished runs under a folder, in order of their paths.

    Raises:
        ExperimentError: there is no such folder, or a file holds something else.
    """
    if not root.is_dir():
        raise ExperimentError(f"there is no folder {root}; train something first: atomsep train")
    found = [Run(path.parent).read_result() for path in sorted(root.rglob("result.json"))]
    return [r for r in found if r is not None and r.get("validation", False) == validation]
