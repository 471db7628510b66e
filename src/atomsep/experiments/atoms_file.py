"""Samples of a finished run with the charges of their tokens: `atoms.npz` in the run's folder.

The file holds at most 64 samples, spread over the held-out ones, and is smaller than 2 MB. Which
arrays it has depends on the data:

    charges       (n, h, w) for images, (n, N) otherwise, float16; 0 on padding
    labels        (n,), and `predictions` (n,), for classifiers
    images        (n, C, H, W), bytes as the model sees them before they are normalised, or as a
                  generator made them
    sentences     (n,), texts; `tokens` (n,), each a JSON list of [piece, word or -1 for special
                  tokens, start, end]; `lengths` (n,), the number of real tokens
    values        (n, 5), the sub-units of the mixtures
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, NamedTuple

from atomsep.experiments.errors import ExperimentError
from atomsep.experiments.files import CONTINUES, replacing, writing

NAME = "atoms.npz"

MOST, LIMIT = 64, 2_000_000
"""Samples and bytes that a file holds at most."""


class Token(NamedTuple):
    """A token of a sentence.

    Attributes:
        piece: as the tokenizer writes it.
        word: number of its word in the sentence; -1 for special tokens.
        start: where it starts in the sentence; -1 if the tokenizer does not tell.
        end: where it ends.
    """

    piece: str
    word: int
    start: int
    end: int


@dataclass(frozen=True, eq=False)
class Atoms:
    """Samples with the charges of their tokens; what the data does not have is None.

    Attributes:
        charges: `(n, h, w)` or `(n, N)`, in [-1, 1]; 0 on padding.
        labels: classes, `(n,)`.
        predictions: predicted classes, `(n,)`.
        images: bytes, `(n, C, H, W)`.
        sentences: texts.
        tokens: the tokens of each sentence.
        lengths: number of tokens of each sentence, `(n,)`.
        values: sub-units of the mixtures, `(n, 5)`.
    """

    charges: Any
    labels: Any = None
    predictions: Any = None
    images: Any = None
    sentences: Sequence[str] | None = None
    tokens: Sequence[Sequence[Token]] | None = None
    lengths: Any = None
    values: Any = None

    def __len__(self) -> int:
        return len(self.charges)

    def take(self, chosen: Sequence[int]) -> Atoms:
        """Some of the samples."""
        changes = {}
        for name, column in _columns(self).items():
            rows = [column[index] for index in chosen]
            changes[name] = rows if isinstance(column, list) else column[list(chosen)]
        return replace(self, **changes)


def _columns(atoms: Atoms) -> dict[str, Any]:
    found = {field.name: getattr(atoms, field.name) for field in fields(atoms)}
    return {name: column for name, column in found.items() if column is not None}


def spread(count: int, most: int) -> list[int]:
    """At most `most` of the numbers below `count`, evenly spread.

    Example:
        >>> spread(10, 4), spread(2, 4)
        ([0, 2, 5, 7], [0, 1])
    """
    kept = min(count, most)
    return [number * count // kept for number in range(kept)]


def write_atoms(folder: Path, atoms: Atoms) -> Path | None:
    """Write the file into a run's folder: all samples, or as many of them as 2 MB hold.

    Returns:
        Its path; None if not even one sample fits.

    Raises:
        ExperimentError: the file system refuses.
    """
    data = _packed(atoms)
    while len(data) > LIMIT:
        atoms = atoms.take(spread(len(atoms), int(0.95 * len(atoms) * LIMIT / len(data))))
        if not len(atoms):
            return None
        data = _packed(atoms)
    path = folder / NAME
    with writing(path, then=CONTINUES), replacing(path) as part:
        part.write_bytes(data)
    return path


def _packed(atoms: Atoms) -> bytes:
    import numpy as np

    columns = _columns(atoms)
    columns["charges"] = np.asarray(atoms.charges, dtype=np.float16)
    if atoms.tokens is not None:
        columns["tokens"] = [json.dumps(tokens) for tokens in atoms.tokens]
    arrays: dict[str, Any] = {name: np.asarray(each) for name, each in columns.items()}
    file = io.BytesIO()
    np.savez_compressed(file, **arrays)
    return file.getvalue()


def read_atoms(folder: Path) -> Atoms | None:
    """The samples in a run's folder; None if it has none, as for methods without importance.

    Raises:
        ExperimentError: the file is damaged.
    """
    import numpy as np

    path = folder / NAME
    try:
        with np.load(path, allow_pickle=False) as file:
            columns: dict[str, Any] = {name: file[name] for name in file.files}
        for name in ("sentences", "tokens"):
            if name in columns:
                columns[name] = columns[name].tolist()
        if "tokens" in columns:
            lists = map(json.loads, columns["tokens"])
            columns["tokens"] = [[Token(*token) for token in tokens] for tokens in lists]
        known = {field.name for field in fields(Atoms)}
        return Atoms(**{name: each for name, each in columns.items() if name in known})
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise ExperimentError(
            f"{path} does not hold samples with their charges ({error}); remove it, or train the "
            f"run again"
        ) from error
