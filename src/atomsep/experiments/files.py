"""Files that are whole at any moment, and sentences for what the file system refuses."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from atomsep.experiments.errors import ExperimentError

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Error numbers of a disk, a quota or a file that can hold no more."""


CONTINUES = ": the run continues from its last checkpoint"
"""What follows the advice to repeat a command that trains."""


@contextmanager
def writing(path: Path, *, then: str = "") -> Iterator[None]:
    """Turn an error of the file system into a sentence that names the path.

    Args:
        path: what is written.
        then: what follows the advice to repeat the command.

    Raises:
        ExperimentError: the file system refused.
    """
    try:
        yield
    except OSError as error:
        reason, advice = error.strerror or str(error), "fix that"
        if error.errno in FULL:
            advice = "free some space"
        elif isinstance(error, FileExistsError | NotADirectoryError):
            in_the_way = file_on(path)
            if in_the_way is not None:
                reason, advice = f"{in_the_way} is a file, not a folder", "choose another folder"
        raise ExperimentError(
            f"{path} cannot be written ({reason}); {advice} and repeat the command{then}"
        ) from error


def file_on(path: Path) -> Path | None:
    """The file that a path goes through as if it were a folder, or that is there; None if none."""
    return next((each for each in (path, *path.parents) if each.is_file()), None)


@contextmanager
def replacing(path: Path, *, durable: bool = True) -> Iterator[Path]:
    """Write a file under another name, then move it into place, so that readers see it whole.

    Unless `durable`, a power cut may bring back the old file.
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


@contextmanager
def alone(lock: Path) -> Iterator[None]:
    """Wait until no other process is in here with the same lock file.

    The kernel lifts the lock when a process ends, in whatever way.
    """
    import fcntl

    with open(lock, "a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def write_text(path: Path, text: str, *, durable: bool = True, then: str = "") -> None:
    """Write a text file so that a reader finds the old text or the new one, never a part.

    See `writing` for `then`, and `replacing` for `durable`.
    """
    with writing(path, then=then), replacing(path, durable=durable) as part:
        part.write_text(text, encoding="utf-8")


def write_state(path: Path, state: Mapping[str, Any]) -> None:
    """Write a state dictionary of a run with `torch.save`, whole or not at all."""
    import torch

    # A file object, because torch's own files do not say what went wrong.
    with writing(path, then=CONTINUES), replacing(path) as part, open(part, "wb") as file:
        try:
            torch.save(state, file)
        except RuntimeError as error:
            raise _hidden_os_error(error) from error


def _hidden_os_error(error: BaseException) -> BaseException:
    """The error of the file, which torch's writer replaces by its own."""
    below: BaseException | None = error
    while below is not None and not isinstance(below, OSError):
        below = below.__context__
    return below or error
