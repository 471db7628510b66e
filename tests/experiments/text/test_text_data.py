"""Sentences from disk, in the layouts of their publishers; splits; downloads; what is refused."""

from __future__ import annotations

import threading
import zipfile
from collections import Counter
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from atomsep.experiments.download import fetch
from atomsep.experiments.errors import ExperimentError
from atomsep.experiments.machine import Machine, make_fabric
from atomsep.experiments.registry import run_key
from atomsep.experiments.task import Context, Experiment
from atomsep.experiments.text import data as text_data
from atomsep.experiments.text.data import COLA_FILES, POEM_FILES, fetch_cola, read_cola, read_poem
from atomsep.experiments.text.experiments import COLA, OWN_TEXT, POEM
from atomsep.experiments.text.own import read_own_text
from atomsep.experiments.training import train

QUICK = ("model=tiny", "epochs=1", "learning_rate=0.005")


def context_of(experiment: Experiment, data: Path, *changes: str, **options: Any) -> Context:
    settings = run_key(experiment, "plain", 0, changes).settings
    fabric = make_fabric(Machine(device="cpu"), "32-true")
    return Context(settings, "plain", 0, fabric, data, **options)


def cola_lines(count: int, source: str) -> str:
    rows = (
        f'{source}\t{n % 2}\t{"" if n % 2 else "*"}\tHe said "{source} {n}' for n in range(count)
    )
    return "\n".join(rows) + "\n"


def write_cola(folder: Path, names: tuple[str, ...] = COLA_FILES) -> Path:
    folder.mkdir(parents=True)
    for name, count in zip(names, (40, 6, 4), strict=False):
        (folder / name).write_text(cola_lines(count, name.split(".")[0]), encoding="utf-8")
    return folder.parent


def write_poem(folder: Path) -> Path:
    folder.mkdir(parents=True)
    labels = {
        "train.tsv": ["-1", "0", "1", "2", "0", "0"] * 5,
        "dev.tsv": ["0", "1"],
        "test.tsv": ["1", "-1", "0"],
    }
    for name, values in labels.items():
        rows = (f'{n}\ta "verse {name} {n}\t{value}' for n, value in enumerate(values))
        (folder / name).write_text("\n".join(rows) + "\n", encoding="utf-8")
    return folder.parent


def test_cola_joins_both_dev_sets(tmp_path: Path) -> None:
    train, dev = read_cola(context_of(COLA, write_cola(tmp_path / "cola")))
    assert (len(train), len(dev)) == (40, 10)
    assert train.load(1) == ('He said "in_domain_train 1', 1)  # quotes are letters
    assert train.classes == ("unacceptable", "acceptable")
    assert [text.split()[2] for text in dev.stored[5:7]] == ['"in_domain_dev', '"out_of_domain_dev']


def test_cola_as_glue_lays_it_out(tmp_path: Path) -> None:
    data = write_cola(tmp_path / "CoLA", ("train.tsv", "dev.tsv"))
    train, dev = read_cola(context_of(COLA, data))
    assert (len(train), len(dev)) == (40, 6)


def test_validation_of_cola_is_a_tenth_of_every_class_of_train(tmp_path: Path) -> None:
    data = write_cola(tmp_path / "cola")
    train, dev = read_cola(context_of(COLA, data))
    less, held_out = read_cola(context_of(COLA, data, validation=True))
    assert Counter(held_out.labels) == {0: 2, 1: 2}
    assert Counter(less.labels) == {0: 18, 1: 18}
    assert set(less.stored) | set(held_out.stored) == set(train.stored)
    assert not set(less.stored) & set(held_out.stored)
    assert not set(held_out.stored) & set(dev.stored)
    assert read_cola(context_of(COLA, data, validation=True))[1].stored == held_out.stored


def test_poem_maps_its_labels_and_searches_on_dev(tmp_path: Path) -> None:
    data = write_poem(tmp_path / "poem")
    train, test = read_poem(context_of(POEM, data))
    assert train.labels[:4] == [0, 2, 1, 3]
    assert train.classes == ("negative", "positive", "no_impact", "mixed")
    assert test.labels == [1, 0, 2]
    same, dev = read_poem(context_of(POEM, data, validation=True))
    assert same.stored == train.stored
    assert dev.stored == ['a "verse dev.tsv 0', 'a "verse dev.tsv 1']


def test_real_layouts_train(tmp_path: Path) -> None:
    write_cola(tmp_path / "cola")
    write_poem(tmp_path / "poem")
    machine = Machine(device="cpu", data=tmp_path, tensorboard=False)
    for experiment, count in ((COLA, 4), (POEM, 6)):
        for validation in (False, True):
            key = run_key(experiment, "atom", 0, QUICK, validation=validation)
            result = train(experiment, key, tmp_path / "runs", machine)
            assert len(result["metrics"]) == count


@pytest.mark.parametrize(
    ("experiment", "read", "folder"), [(COLA, read_cola, "cola"), (POEM, read_poem, "poem")]
)
def test_missing_data_says_what_to_do(
    experiment: Experiment, read: Any, folder: str, tmp_path: Path
) -> None:
    with pytest.raises(ExperimentError) as caught:
        read(context_of(experiment, tmp_path))
    assert f"there is no folder {tmp_path / folder}, which must hold" in str(caught.value)
    assert " with --download, or name the folder" in str(caught.value)
    (tmp_path / folder).mkdir()
    with pytest.raises(ExperimentError, match="not all files are in"):
        read(context_of(experiment, tmp_path))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a\t1\t\tgood\na\t5\t\tbad\n", "line 2: the label is '5', but must be one of 0, 1"),
        ("a\t1\tgood\n", "line 1: 3 columns, but there must be 4"),
        ("", "in_domain_train.tsv is empty"),
        (b"a\t1\t\t\xff\xfe\n", "cannot be read as a table"),
    ],
)
def test_other_tables_are_refused(content: str | bytes, message: str, tmp_path: Path) -> None:
    data = write_cola(tmp_path / "cola")
    raw = content if isinstance(content, bytes) else content.encode()
    (tmp_path / "cola" / COLA_FILES[0]).write_bytes(raw)
    with pytest.raises(ExperimentError) as caught:
        read_cola(context_of(COLA, data))
    assert message in str(caught.value)


def write_table(file: Path, rows: list[str], header: str = "id,label,text") -> Path:
    file.write_text("\n".join([header, *rows]) + "\n", encoding="utf-8")
    return file


ROWS = [f'{n},{"spam" if n % 4 else "ham"},"a, ""quoted"" text {n}"' for n in range(40)]


def test_a_table_is_split_by_class(tmp_path: Path) -> None:
    file = write_table(tmp_path / "mine.csv", ROWS)
    train, test = read_own_text(context_of(OWN_TEXT, tmp_path, f"file={file}"))
    assert Counter(test.labels) == {0: 2, 1: 6}
    assert Counter(train.labels) == {0: 8, 1: 24}
    assert list(train.classes) == ["ham", "spam"]
    assert 'a, "quoted" text 1' in train.stored + test.stored
    less, held_out = read_own_text(context_of(OWN_TEXT, tmp_path, f"file={file}", validation=True))
    assert set(less.stored) | set(held_out.stored) == set(train.stored)
    assert not set(held_out.stored) & set(test.stored)


def test_a_table_with_a_test_file_and_other_columns(tmp_path: Path) -> None:
    header = "grade\tsentence"
    file = write_table(tmp_path / "mine.tsv", ['10\ta "tab', "9\tb", "10\tc", "9\td"], header)
    held = write_table(tmp_path / "held.tsv", ["9\te"], header)
    changes = ("text_column=sentence", "label_column=grade", f"file={file}", f"test_file={held}")
    train, test = read_own_text(context_of(OWN_TEXT, tmp_path, *changes))
    assert list(train.classes) == ["9", "10"]  # numbers in the order of numbers
    assert (train.stored, train.labels) == (['a "tab', "b", "c", "d"], [1, 0, 1, 0])
    assert (test.stored, test.labels) == (["e"], [0])


def test_a_table_trains(tmp_path: Path) -> None:
    file = write_table(tmp_path / "mine.csv", ROWS)
    key = run_key(OWN_TEXT, "simcse", 0, [*QUICK, f"file={file}"])
    result = train(OWN_TEXT, key, tmp_path / "runs", Machine(device="cpu", tensorboard=False))
    assert set(result["metrics"]) == {"accuracy", "mcc", "f1", "ece", "nll"}


def test_sentences_from_a_function(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"texts_{abs(hash(str(tmp_path)))}"
    (tmp_path / f"{name}.py").write_text(
        "def data():\n    return [('a', 1), ('b', 0)] * 4, [('c', 1)]\n"
        "def wrong():\n    return [('a', 1)], 3\n"
        "def empty():\n    return [('a', 1)], []\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    train, test = read_own_text(context_of(OWN_TEXT, tmp_path, f"file={name}:data"))
    assert (len(train), test.stored, test.labels) == (8, ["c"], [1])
    for function, message in (("wrong", "must return two lists"), ("empty", "an empty list")):
        with pytest.raises(ExperimentError, match=message):
            read_own_text(context_of(OWN_TEXT, tmp_path, f"file={name}:{function}"))


@pytest.mark.parametrize(
    ("rows", "changes", "message"),
    [
        (ROWS, ["text_column=txt"], "{file} must have one column 'txt', but its columns are"),
        (ROWS, ["label_column=klass"], "must have one column 'klass'"),
        (["1,ham,a", "2,ham,b"], [], "holds only one class, 'ham'"),
        ([], [], "holds no samples below its header"),
        (["1,,a", "2,ham,b"], [], "line 2: the label is empty; fill it in or remove"),
        (["1,ham"], [], "line 2: 2 columns, but the header has 3"),
        (["1,a,x", "2,b,y"], [], "no class has two samples"),
    ],
)
def test_bad_tables_are_refused(
    rows: list[str], changes: list[str], message: str, tmp_path: Path
) -> None:
    file = write_table(tmp_path / "mine.csv", rows)
    with pytest.raises(ExperimentError) as caught:
        read_own_text(context_of(OWN_TEXT, tmp_path, f"file={file}", *changes))
    assert message.format(file=file) in str(caught.value)


def test_files_that_are_no_tables(tmp_path: Path) -> None:
    (tmp_path / "x.json").touch()
    (tmp_path / "folder.csv").mkdir()
    for file, message in (
        ("", "name the file of the sentences with --set file=FILE.csv"),
        (tmp_path / "x.json", "must be a .csv or .tsv file"),
        (tmp_path / "folder.csv", "folder.csv cannot be read as a table"),
        ("nothing.csv", "there is no file nothing.csv; name a .csv or .tsv"),
    ):
        with pytest.raises(ExperimentError) as caught:
            read_own_text(context_of(OWN_TEXT, tmp_path, f"file={file}"))
        assert message in str(caught.value)


def test_a_label_that_training_has_not_is_refused(tmp_path: Path) -> None:
    file = write_table(tmp_path / "mine.csv", ROWS)
    held = write_table(tmp_path / "held.csv", ["1,spamm,a"])
    with pytest.raises(ExperimentError) as caught:
        read_own_text(context_of(OWN_TEXT, tmp_path, f"file={file}", f"test_file={held}"))
    assert f"no class 'spamm' among the training samples, but {held} has it" in str(caught.value)


class Server(SimpleHTTPRequestHandler):
    """Serves a folder without a word; breaks off in the middle of files called broken."""

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing."""

    def copyfile(self, source: Any, outputfile: Any) -> None:
        whole = source.read()
        outputfile.write(whole[: len(whole) // 2] if "broken" in self.path else whole)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """An address, and the folder that it serves."""
    folder = tmp_path / "served"
    folder.mkdir()
    handler = partial(Server, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as http:
        thread = threading.Thread(target=http.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{http.server_port}/", folder
        finally:
            http.shutdown()
            thread.join()


def serve_cola(folder: Path) -> None:
    with zipfile.ZipFile(folder / "cola_public_1.1.zip", "w") as archive:
        for name in COLA_FILES:
            archive.writestr(f"cola_public/raw/{name}", cola_lines(8, name))
            archive.writestr(f"cola_public/tokenized/{name}", "other")


def test_cola_is_downloaded_once(
    server: tuple[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, served = server
    serve_cola(served)
    real = fetch_cola
    monkeypatch.setattr(
        text_data, "fetch_cola", lambda folder: real(folder, url + "cola_public_1.1.zip")
    )
    data = tmp_path / "data"
    train, dev = read_cola(context_of(COLA, data, download=True))
    assert (len(train), len(dev)) == (8, 16)
    assert {file.name for file in (data / "cola").iterdir()} == set(COLA_FILES)
    (served / "cola_public_1.1.zip").unlink()
    assert len(read_cola(context_of(COLA, data, download=True))[0]) == 8


def test_poem_is_downloaded(
    server: tuple[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, served = server
    write_poem(served / "data")
    monkeypatch.setattr(text_data, "POEM_URL", url + "data/")
    train, test = read_poem(context_of(POEM, tmp_path / "new", download=True))
    assert (len(train), len(test)) == (30, 3)
    assert {file.name for file in (tmp_path / "new" / "poem").iterdir()} == set(POEM_FILES)


def test_a_broken_download_leaves_nothing(server: tuple[str, Path], tmp_path: Path) -> None:
    url, served = server
    (served / "broken.tsv").write_text("0123456789")
    for name, reason in (
        ("broken.tsv", "only 5 of 10 bytes arrived"),
        ("none.tsv", "HTTP Error 404"),
    ):
        with pytest.raises(ExperimentError) as caught:
            fetch(url + name, tmp_path / "new" / name)
        assert reason in str(caught.value)
        assert "try again, or put the file there yourself" in str(caught.value)
    assert list((tmp_path / "new").iterdir()) == []


def test_an_archive_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "x.zip").write_text("sorry, moved")
    with pytest.raises(ExperimentError, match=r"x\.zip cannot be unpacked"):
        fetch_cola(tmp_path / "cola", (tmp_path / "x.zip").as_uri())
