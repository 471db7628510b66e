"""Arrays that are made once, kept on disk, and shared by all processes.

Decoding a data set takes minutes, and every run of a sweep needs the result. The first process
writes it as `.npy` files; all others wait for it, then map the same pages of memory.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from atomsep.experiments.errors import ExperimentError
from atomsep.experiments.files import FULL, alone

VERSION = 1
"""Layout of the folders; a cache of another version is not used."""

DISK = 0.25
"""Share of the free disk space that decoded images may take unasked."""

ABOUT = "about.json"
HEADER = 128
"""Bytes before the data of an array that `growing` writes."""


class NoRoomError(ExperimentError):
    """There is no place on disk for a cache; whoever asked may do without."""


def cached_arrays(
    folder: Path,
    name: str,
    key: Mapping[str, Any],
    sources: Iterable[Path | str],
    make: Callable[[Path], None],
    *,
    expected: int = 0,
    share: float = 1.0,
) -> dict[str, Tensor]:
    """Arrays made from source files, or mapped from an earlier call of any process.

    They lie in `folder/NAME-DIGEST/`. The digest depends on the key and on the sources' names,
    sizes and times, so that arrays made from other files are never used. If the folder cannot be
    written, the arrays lie in the user's cache folder, `~/.cache/atomsep`.

    Args:
        folder: where to keep them.
        name: start of the folder's name.
        key: all that the arrays depend on besides the sources; must be JSON.
        sources: the files that the arrays are made from, in order.
        make: writes `.npy` files into the folder it is given; see `growing` for arrays larger than
            memory.
        expected: bytes that the arrays will take, if known.
        share: share of the free disk space that they may take.

    Returns:
        Arrays by the names of their files, in memory that must not be written to.

    Raises:
        NoRoomError: the disk has too little space, or no folder can be written.
        ExperimentError: the arrays on disk are damaged.
    """
    place = folder / f"{name}-{_digest(key, sources)}"
    spare = user_cache() / place.name
    for each in (place, spare):
        if each.is_dir():
            return _mapped(each)
    try:
        _make_once(place, key, make, expected / share)
    except _ReadOnlyError:
        place = spare
        try:
            _make_once(place, key, make, expected / share)
        except _ReadOnlyError as error:
            raise NoRoomError(
                f"neither {folder} nor {place.parent} can be written ({error}), so decoded "
                f"data cannot be kept; make one of them writable"
            ) from None
    return _mapped(place)


@contextmanager
def growing(path: Path, shape: tuple[int, ...], kind: str) -> Iterator[Callable[[Any], None]]:
    """Write a `.npy` file part by part, without holding the array in memory.

    Unlike writing to mapped memory, which kills the process if the disk is full, this raises an
    OSError.

    Args:
        path: the file.
        shape: shape of one row; the number of rows is found out.
        kind: type of the elements, as in NumPy.

    Yields:
        A function that appends an array `(rows, *shape)`.
    """
    rows = 0
    with open(path, "wb") as file:
        file.write(bytes(HEADER))

        def append(part: Any) -> None:
            nonlocal rows
            part = np.ascontiguousarray(part, kind)
            if part.shape[1:] != shape:
                raise ValueError(f"rows of shape {part.shape[1:]} do not fit {shape}")
            file.write(part.data)
            rows += len(part)

        yield append
        about = {"descr": np.dtype(kind).str, "fortran_order": False, "shape": (rows, *shape)}
        text = repr(about).encode("latin1")
        length = HEADER - 10  # after the magic string, the version and this length
        file.seek(0)
        file.write(b"\x93NUMPY\x01\x00" + length.to_bytes(2, "little"))
        file.write(text.ljust(length - 1) + b"\n")


class _ReadOnlyError(Exception):
    """A folder cannot be written to."""


def user_cache() -> Path:
    """The user's own folder, for what cannot be kept beside the data."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "atomsep"


def _digest(key: Mapping[str, Any], sources: Iterable[Path | str]) -> str:
    text = hashlib.blake2b(digest_size=8)
    text.update(json.dumps([VERSION, dict(key)], sort_keys=True).encode())
    for source in sources:
        try:
            found = os.stat(source)
            facts = (found.st_size, found.st_mtime_ns)
        except OSError:  # `make` says what is wrong with it, if anything
            facts = (-1, -1)
        text.update(json.dumps((os.path.abspath(source), *facts)).encode())
    return text.hexdigest()


def _make_once(
    place: Path, key: Mapping[str, Any], make: Callable[[Path], None], needed: float
) -> None:
    """Make the arrays, unless another process did while this one waited."""
    part, lock = (place.with_name(f".{place.name}.{end}") for end in ("part", "lock"))
    with _writable():
        place.parent.mkdir(parents=True, exist_ok=True)
        lock.touch()
    with alone(lock):
        if place.is_dir():
            return
        shutil.rmtree(part, ignore_errors=True)  # of a process that was killed
        free = shutil.disk_usage(place.parent).free
        if needed > free:
            raise NoRoomError(
                f"{place.parent} needs {needed / 1e9:.1f} GB of free space for decoded data, and "
                f"has {free / 1e9:.1f} GB; free some space"
            )
        with _writable():
            part.mkdir()
        try:
            _fill(part, key, make)
            os.replace(part, place)
            _sync(place.parent)
        except OSError as error:
            if error.errno not in FULL:
                raise
            raise NoRoomError(
                f"{place} cannot be written ({error.strerror}); free some space and repeat the "
                f"command"
            ) from error
        finally:
            shutil.rmtree(part, ignore_errors=True)


@contextmanager
def _writable() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise _ReadOnlyError(error.strerror or str(error)) from error


def _fill(part: Path, key: Mapping[str, Any], make: Callable[[Path], None]) -> None:
    make(part)
    sizes = {file.name: file.stat().st_size for file in sorted(part.glob("*.npy"))}
    (part / ABOUT).write_text(json.dumps({"key": dict(key), "sizes": sizes}, indent=2) + "\n")
    for file in part.iterdir():
        _sync(file)
    _sync(part)


def _sync(path: Path) -> None:
    """Wait until a file or the entries of a folder are on disk."""
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def _mapped(place: Path) -> dict[str, Tensor]:
    try:
        sizes = json.loads((place / ABOUT).read_text())["sizes"]
        arrays = {}
        for name, size in sizes.items():
            if (place / name).stat().st_size != size:
                raise ValueError(f"{name} does not have {size} bytes")
            # Read-only: a writable mapping may not be larger than the memory.
            array = np.load(place / name, mmap_mode="r")
            with warnings.catch_warnings():  # torch warns that it cannot write to it
                warnings.filterwarnings("ignore", "The given NumPy array is not writ", UserWarning)
                arrays[Path(name).stem] = torch.from_numpy(array)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ExperimentError(
            f"{place} is damaged ({error}); delete that folder to have it rebuilt"
        ) from error
    return arrays
