"""Sentences to classify: CoLA, Poem sentiment, and a user's own table.

Every reader returns training samples and held-out samples. The held-out ones are those that
results are reported on or, for searches, samples that no run trains on.
"""

from __future__ import annotations

import csv
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from atomsep.experiments.download import fetch
from atomsep.experiments.errors import ExperimentError
from atomsep.experiments.files import replacing
from atomsep.experiments.samples import Samples, Sets
from atomsep.experiments.task import Context

COLA_URL = "https://nyu-mll.github.io/CoLA/cola_public_1.1.zip"
COLA_FILES = ("in_domain_train.tsv", "in_domain_dev.tsv", "out_of_domain_dev.tsv")
COLA_CLASSES = ("unacceptable", "acceptable")
COLA_LABELS = {"0": 0, "1": 1}
POEM_URL = "https://raw.githubusercontent.com/google-research-datasets/poem-sentiment/main/data/"
POEM_FILES = ("train.tsv", "dev.tsv", "test.tsv")
POEM_CLASSES = ("negative", "positive", "no_impact", "mixed")
POEM_LABELS = {"-1": 0, "1": 1, "0": 2, "2": 3}
VALIDATION_SHARE = 0.1


def as_samples(
    texts: Iterable[str], labels: Iterable[int], classes: Sequence[str], source: str
) -> Samples:
    """Sentences with their labels.

    Args:
        texts: the sentences.
        labels: their classes, from 0.
        classes: names of all classes.
        source: their name in messages.
    """
    stored = list(texts)
    names = [f"{source}, sample {number}" for number in range(1, len(stored) + 1)]
    return Samples(stored, list(labels), classes, names)


def read_cola(context: Context) -> Sets:
    """CoLA: its training samples, and both dev sets joined as in GLUE; validation: a tenth.

    The folder `cola` (or `CoLA`) holds the public release's three files, or GLUE's train.tsv and
    dev.tsv.

    Raises:
        ExperimentError: the data is missing, or has another form.
    """
    folders = [context.data / "cola", context.data / "CoLA"]
    forms = (COLA_FILES, ("train.tsv", "dev.tsv"))
    places = [(folder, names) for names in forms for folder in folders]
    with context.fabric.rank_zero_first():
        if context.download and not any(_has(*place) for place in places):
            fetch_cola(folders[0])
    for folder, names in places:
        if _has(folder, names):
            train, *dev = (
                _read_rows(folder / name, 4, 3, 1, COLA_LABELS, COLA_CLASSES) for name in names
            )
            joined = dev[0] + dev[1] if len(dev) > 1 else dev[0]
            return train.with_held_out(joined, VALIDATION_SHARE, context.validation)
    raise _missing("CoLA", folders[0], COLA_FILES)


def read_poem(context: Context) -> Sets:
    """Poem sentiment: official train and test; validation: official dev.

    Raises:
        ExperimentError: the data is missing, or has another form.
    """
    folder = context.data / "poem"
    with context.fabric.rank_zero_first():
        if context.download:
            for name in POEM_FILES:
                fetch(POEM_URL + name, folder / name)
    if not _has(folder, POEM_FILES):
        raise _missing("Poem sentiment", folder, POEM_FILES)
    train, dev, test = (
        _read_rows(folder / name, 3, 1, 2, POEM_LABELS, POEM_CLASSES) for name in POEM_FILES
    )
    return train, dev if context.validation else test


def fetch_cola(folder: Path, url: str = COLA_URL) -> None:
    """Download the public release and unpack its three files.

    Raises:
        ExperimentError: it cannot be fetched, or is not such an archive.
    """
    archive = folder / url.rsplit("/", 1)[-1]
    fetch(url, archive)
    try:
        with zipfile.ZipFile(archive) as opened:
            for name in COLA_FILES:
                with replacing(folder / name) as part:
                    part.write_bytes(opened.read(f"cola_public/raw/{name}"))
    except (zipfile.BadZipFile, KeyError, OSError) as error:
        raise ExperimentError(
            f"{archive} cannot be unpacked ({error}); remove it and try again"
        ) from error
    archive.unlink()


def _has(folder: Path, names: Sequence[str]) -> bool:
    return all((folder / name).is_file() for name in names)


def _missing(title: str, folder: Path, names: Sequence[str]) -> ExperimentError:
    what = "there is no folder" if not folder.exists() else "not all files are in"
    return ExperimentError(
        f"{what} {folder}, which must hold {', '.join(names)}; fetch {title} with --download, or "
        f"name the folder that holds {folder.name}/ with --data"
    )


def _read_rows(
    path: Path,
    columns: int,
    text: int,
    label: int,
    labels: Mapping[str, int],
    classes: Sequence[str],
) -> Samples:
    """A table without a header, with columns by number."""
    texts, numbers = [], []
    for line, row in read_table(path, "\t"):
        if len(row) != columns:
            raise ExperimentError(
                f"{path}, line {line}: {len(row)} columns, but there must be {columns}, separated "
                f"by tabs"
            )
        if row[label] not in labels:
            raise ExperimentError(
                f"{path}, line {line}: the label is {row[label]!r}, but must be one of "
                f"{', '.join(labels)}"
            )
        texts.append(row[text])
        numbers.append(labels[row[label]])
    if not texts:
        raise ExperimentError(f"{path} is empty; remove it and use --download")
    return as_samples(texts, numbers, classes, str(path))


def read_table(path: Path, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    """The rows of a table with their line numbers. With tabs, quotes have no meaning.

    Raises:
        ExperimentError: the file cannot be read as a table.
    """
    quoting: Any = csv.QUOTE_NONE if delimiter == "\t" else csv.QUOTE_MINIMAL
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file, delimiter=delimiter, quoting=quoting)
            for row in reader:
                if row:
                    yield reader.line_num, row
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ExperimentError(
            f"{path} cannot be read as a table ({error}); it must be UTF-8 text with one row per "
            f"sample"
        ) from error
