"""A run on disk: its configuration, metrics, checkpoint and result.

    runs/flowers/atom-1a2b3c4d/seed-0/
        config.json     what was asked for, names of the classes, versions, commit, machine
        metrics.jsonl   a line per epoch and per evaluation; the gradient share of the first step
        checkpoint.pt   where to continue from; removed when the run is finished
        model.pt        state dictionaries of the trained models, by name
        encoder/        tokenizer and configuration of the encoder, for text
        atoms.npz       some samples with their charges
        result.json     exists only once the run is finished

Every file is whole at any moment: it is written under another name and then moved into place.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from atomsep.experiments.errors import ExperimentError
from atomsep.experiments.files import file_on, write_state, writing
from atomsep.experiments.settings import Settings

if TYPE_CHECKING:
    import torch

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
"""Names of experiments and methods, which are also names of folders and files."""

ATTEMPTS = 100
"""How often the lock is tried while other processes remove its folder."""


@dataclasses.dataclass(frozen=True)
class RunKey:
    """What distinguishes a run from all others."""

    experiment: str
    method: str
    seed: int
    settings: Settings
    tiny: bool = False
    validation: bool = False

    def folder(self, root: Path) -> Path:
        """The run's folder under the folder of all runs."""
        name = self.experiment + ("-tiny" if self.tiny else "")
        parts = [name, "validation"] if self.validation else [name]
        return root.joinpath(*parts, f"{self.method}-{self.settings.digest()}", f"seed-{self.seed}")

    def record(self) -> dict[str, Any]:
        """The key as it is written to disk."""
        record = dataclasses.asdict(self)
        record["settings"] = record.pop("settings")  # last
        return record


class Run:
    """The folder of one run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.config = folder / "config.json"
        self.metrics = folder / "metrics.jsonl"
        self.checkpoint = folder / "checkpoint.pt"
        self.model = folder / "model.pt"
        self.result = folder / "result.json"
        self.lock = folder / ".lock"

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes out of the folder until the block or the process ends.

        Raises:
            ExperimentError: another process holds the lock, or the folder cannot be written.
        """
        with self._take_lock():
            for part in self.folder.glob(".*.part"):  # what a killed process was writing
                part.unlink()
            try:
                yield
            finally:
                self._remove_if_empty()

    def _take_lock(self) -> IO[str]:
        import fcntl

        for attempt in range(ATTEMPTS):
            with writing(self.folder):
                try:
                    self.folder.mkdir(parents=True, exist_ok=True)
                    file = open(self.lock, "w")  # noqa: SIM115
                except FileNotFoundError:  # another process has just removed the empty folder
                    if attempt < ATTEMPTS - 1:
                        continue
                    raise
            try:
                # Not flock, which the processes that load data would hold for a while longer.
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # A file that was removed after it was opened locks nobody out.
                if os.path.samestat(os.fstat(file.fileno()), os.stat(self.lock)):
                    return file
            except FileNotFoundError:
                pass
            except OSError:
                file.close()
                break
            file.close()
        raise ExperimentError(
            f"another process is training in {self.folder}; wait for it, or choose another "
            f"folder with --out"
        )

    def _remove_if_empty(self) -> None:
        """Remove the folders of a run that wrote nothing."""
        with suppress(OSError):  # another process may be quicker, or a folder not empty
            if [path.name for path in self.folder.iterdir()] == [self.lock.name]:
                self.lock.unlink()
                for folder in (self.folder, *self.folder.parents[:2]):
                    folder.rmdir()

    def read_result(self) -> dict[str, Any] | None:
        """The result, or None if the run is not finished.

        Raises:
            ExperimentError: the file does not hold a result, or the folder is a file.
        """
        try:
            result: dict[str, Any] = json.loads(self.result.read_text(encoding="utf-8"))
            _check_result(result)
        except FileNotFoundError:
            return None
        except NotADirectoryError:
            raise ExperimentError(
                f"{file_on(self.folder)} is a file, not a folder of runs; name a folder, for new "
                f"runs with --out"
            ) from None
        except (OSError, ValueError, OverflowError, RecursionError) as error:
            raise ExperimentError(
                f"{self.result} is not a result ({error}); remove it to train the run again"
            ) from None
        return {"unreadable": [], **result}

    def save_model(self, parts: Mapping[str, Any]) -> None:
        """Keep the trained models and what a method learned, without optimisers."""
        from torch import nn

        models = {}
        for name, part in parts.items():
            module = getattr(part, "method", part)  # of a method on a layer
            if isinstance(module, nn.Module) and module.state_dict():
                models[name] = module.state_dict()
        write_state(self.model, models)

    def load_checkpoint(self, device: torch.device) -> dict[str, Any] | None:
        """The last checkpoint, or None."""
        import torch

        if not self.checkpoint.exists():
            return None
        try:
            state: dict[str, Any] = torch.load(
                self.checkpoint, map_location=device, weights_only=True
            )
        except Exception as error:  # a damaged file can break its reader anywhere
            raise self.bad_checkpoint(type(error).__name__) from error
        return state

    def bad_checkpoint(self, reason: str) -> ExperimentError:
        """The error for a checkpoint that cannot be used."""
        return ExperimentError(
            f"{self.checkpoint} cannot be used ({reason}); remove it to start the run over"
        )


def _check_result(result: Any) -> None:
    """Raise a ValueError that says what a result lacks."""
    kinds = {"experiment": str, "method": str, "seed": int, "settings": dict, "metrics": dict}
    optional = {"tiny": bool, "validation": bool, "unreadable": list}
    if type(result) is not dict:
        raise ValueError("it is not a JSON object")
    for name, kind in (kinds | optional).items():
        if name not in result and name in kinds:
            raise ValueError(f"it has no {name!r}")
        if name in result and type(result[name]) is not kind:
            raise ValueError(f"{name!r} is not {_NOUNS[kind]}")
    for name in ("experiment", "method"):  # tables use them in names of files
        if not NAME.fullmatch(result[name]):
            raise ValueError(f"{name!r} is not a name: {result[name]!r}")
    if not result["metrics"]:
        raise ValueError("it has no metrics")
    for name, value in result["metrics"].items():
        if type(value) not in (int, float):
            raise ValueError(f"the metric {name!r} is not a number")
        float(value)  # a whole number can be too large


_NOUNS: dict[type, str] = {
    str: "a text",
    int: "a whole number",
    bool: "true or false",
    dict: "an object",
    list: "a list",
}


def find_results(root: Path, *, validation: bool = False) -> list[dict[str, Any]]:
    """The results of all finished runs under a folder, in order of their paths.

    Raises:
        ExperimentError: there is no such folder, or a `result.json` does not hold a result.
    """
    if not root.is_dir():
        raise ExperimentError(f"there is no folder {root}; train something first: atomsep train")
    found = [Run(path.parent).read_result() for path in sorted(root.rglob("result.json"))]
    return [r for r in found if r is not None and r.get("validation", False) == validation]
