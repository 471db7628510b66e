"""A user's own sentences: a CSV or TSV file with a header, or lists that a function returns."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from atomsep.experiments.entry_points import call_entry_point, is_entry_point
from atomsep.experiments.errors import ExperimentError, unknown
from atomsep.experiments.samples import Samples, Sets
from atomsep.experiments.task import Context
from atomsep.experiments.text.data import VALIDATION_SHARE, as_samples, read_table
from atomsep.experiments.text.experiments import check_own_text

DELIMITERS = {".csv": ",", ".tsv": "\t"}
TEST_SHARE = 0.2

Rows = list[tuple[str, str]]
"""Sentences with the names of their classes."""


def read_own_text(context: Context) -> Sets:
    """The samples of `file` and `test_file`, or of the function that `file` names.

    Without a test file, a fifth of the samples is held out. Validation: a tenth of the training
    samples.

    Raises:
        ExperimentError: `file` is not set, or does not hold texts of classes.
    """
    settings = context.settings
    columns = (settings.text_column, settings.label_column)
    check_own_text(settings)
    test: Rows | None = None
    if is_entry_point(settings.file) and not Path(settings.file).exists():
        train, test = _returned(settings.file)
    else:
        train = _read_columns(Path(settings.file), *columns)
        if settings.test_file:
            test = _read_columns(Path(settings.test_file), *columns)
    classes = _in_order({label for _, label in train})
    if len(classes) < 2:
        raise ExperimentError(
            f"{settings.file} holds only one class, {classes[0]!r}; a classifier needs two"
        )
    samples = _numbered(train, classes, settings.file)
    if test is None:
        samples, held_out = samples.split(TEST_SHARE, "test")
    else:
        held_out = _numbered(test, classes, settings.test_file or settings.file)
    return samples.with_held_out(held_out, VALIDATION_SHARE, context.validation)


def _read_columns(path: Path, text: str, label: str) -> Rows:
    delimiter = DELIMITERS.get(path.suffix.lower())
    if delimiter is None:
        raise ExperimentError(f"{path} must be a .csv or .tsv file, or package.module:function")
    rows = read_table(path, delimiter)
    _, header = next(rows, (0, []))
    for name in (text, label):
        if header.count(name) != 1:
            there = f"its columns are {', '.join(header)}" if header else "it is empty"
            raise ExperimentError(
                f"{path} must have one column {name!r}, but {there}; name the columns with "
                f"--set text_column=NAME and --set label_column=NAME"
            )
    at_text, at_label = header.index(text), header.index(label)
    found: Rows = []
    for line, row in rows:
        if len(row) != len(header):
            raise ExperimentError(
                f"{path}, line {line}: {len(row)} columns, but the header has {len(header)}"
            )
        if not row[at_label].strip():
            raise ExperimentError(
                f"{path}, line {line}: the label is empty; fill it in or remove the line"
            )
        found.append((row[at_text], row[at_label]))
    if not found:
        raise ExperimentError(f"{path} holds no samples below its header")
    return found


def _returned(entry: str) -> tuple[Rows, Rows]:
    sets: Any = call_entry_point("file", entry)
    try:
        train, test = ([(str(text), str(label)) for text, label in rows] for rows in sets)
    except Exception as error:  # of a user's objects, which may raise anything
        raise ExperimentError(
            f"file={entry} must return two lists, for training and for testing, of pairs of a text "
            f"and a label ({type(error).__name__}: {error})"
        ) from error
    if not train or not test:
        raise ExperimentError(f"file={entry} returned an empty list of samples")
    return train, test


def _in_order(labels: set[str]) -> list[str]:
    """Classes sorted by name, or by number if all are numbers."""
    whole = all(label.lstrip("+-").isdecimal() for label in labels)
    return sorted(labels, key=int) if whole else sorted(labels)


def _numbered(rows: Rows, classes: Sequence[str], source: str) -> Samples:
    numbers = {name: number for number, name in enumerate(classes)}
    for _, label in rows:
        if label not in numbers:
            raise unknown(
                "class", label, classes, f"among the training samples, but {source} has it"
            )
    labels = (numbers[label] for _, label in rows)
    return as_samples((text for text, _ in rows), labels, classes, source)
