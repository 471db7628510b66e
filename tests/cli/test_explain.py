"""`atomsep explain`: predictions on the terminal, maps as files, refusals as sentences."""

from __future__ import annotations

import base64
import io
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import atomsep
from atomsep.cli.display import SafeConsole
from atomsep.cli.explaining import image_files, sentences, show
from atomsep.cli.main import main
from atomsep.experiments.errors import ExperimentError
from atomsep.experiments.machine import Machine
from atomsep.experiments.predicting import Prediction
from atomsep.experiments.registry import find_experiment, run_key
from atomsep.experiments.training import train
from atomsep.importance.colours import diverging
from atomsep.importance.images import gap_of
from atomsep.report.explained import Explained, histogram


def explain(*arguments: object) -> int:
    with pytest.raises(SystemExit) as exit:
        main(["explain", *map(str, arguments)])
    assert isinstance(exit.value.code, int)
    return exit.value.code


def finished(name: str, method: str, root: Path) -> Path:
    experiment = find_experiment(name)
    key = run_key(experiment, method, 0, ["epochs=1", "batch=16"], tiny=True)
    train(experiment, key, root, Machine(device="cpu", tensorboard=False))
    return key.folder(root)


@pytest.fixture(scope="module")
def of_images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return finished("pets", "atom", tmp_path_factory.mktemp("images"))


@pytest.fixture(scope="module")
def of_text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return finished("cola", "atom", tmp_path_factory.mktemp("text"))


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")


def write_images(folder: Path, *names: str) -> None:
    for number, name in enumerate(names):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        pixels = np.random.default_rng(number).integers(256, size=(40, 50, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / name)


def test_images_get_predictions_maps_and_one_page(
    of_images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_images(tmp_path, "a.png", "more/b.jpg", "more/deep/a.png")
    (tmp_path / "more" / "notes.txt").write_text("not an image")
    out = tmp_path / "maps"
    assert explain(of_images, tmp_path / "a.png", tmp_path / "more", "--out", out) == 0
    said = capsys.readouterr().out
    assert {path.name for path in out.iterdir()} == {"a.png", "b.png", "a-2.png", "index.html"}
    names = [tmp_path / "a.png", tmp_path / "more/b.jpg", tmp_path / "more/deep/a.png"]
    for name, prediction in zip(names, atomsep.load_run(of_images).predict(names), strict=True):
        assert f"{prediction.name}, {100 * prediction.probability:.1f} %: {name}" in said
    page = (out / "index.html").read_text()
    assert page.count('src="data:image/png;base64,') == 3
    assert not re.search(r'(src|href)="(?!data:)', page), "it needs nothing else"
    for said in (">input<", ">charges<", ">overlay<", "charge q of a token"):
        assert page.count(said) == 3, "as in the PNG files"
    assert str(tmp_path) not in page, "folders of this machine are nobody else's business"
    with Image.open(out / "a.png") as picture:
        assert min(picture.size) > 300


def test_patches_in_a_row_are_maps_of_any_rectangle(tmp_path: Path) -> None:
    """As vision transformers give them, whose class token `attach` leaves out."""
    explained = Explained(tmp_path, "a run")
    seen = torch.zeros(3, 32, 48, dtype=torch.uint8)
    charges = torch.linspace(-1, 1, 6)  # 2 x 3 patches
    prediction = Prediction(0, "cat", 1.0, torch.ones(1), charges, seen)
    [path] = explained.add_image("wide.png", prediction)
    with Image.open(path) as picture:
        assert min(picture.size) > 300
    [source] = re.findall('base64,([^"]+)', explained.write_page().read_text())
    with Image.open(io.BytesIO(base64.b64decode(source))) as picture:
        shown = np.asarray(picture.convert("RGB"))
    gap = gap_of(48)
    found = shown[8::16, 48 + gap + 8 : 2 * 48 + gap : 16]  # the middles of the patches
    np.testing.assert_array_equal(found, diverging(charges.reshape(2, 3)))
    with pytest.raises(ExperimentError, match="charges of wide.png are not a map: 7 tokens do not"):
        explained.add_image("wide.png", replace(prediction, importance=torch.zeros(7)))


def test_sentences_come_from_quotes_and_files_and_stay_text(
    of_text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "some.txt").write_text("the dog runs\n\n  a cat \x1b[31m sleeps\n\u732b\n")
    run = tmp_path / "run"
    shutil.copytree(of_text, run)
    assert explain(run, "the <script>alert(1)</script> cat", tmp_path / "some.txt") == 0
    said = capsys.readouterr().out
    assert said.count(" %: ") == 4
    assert re.search(r"the\([+-]0\.\d\d\) dog\([+-]0\.\d\d\) runs\(", said)
    assert "\x1b" not in said
    page = (run / "explained" / "index.html").read_text()
    assert "<script" not in page
    assert "script</span>" in page
    assert page.count("<dt>") == 4
    assert page.count("charge q of a word") == 4
    pictures = [f"sentence-{number}.png" for number in (1, 2, 3, 4)]
    names = sorted(path.name for path in (run / "explained").iterdir())
    assert names == ["index.html", *pictures]
    for name in pictures:
        with Image.open(run / "explained" / name) as picture:
            assert min(picture.size) > 300


@pytest.mark.parametrize(
    ("colours", "no_color", "numbers"),
    [
        ("truecolor", False, False),
        ("256", False, False),
        ("256", True, True),
        ("standard", False, True),
        (None, False, True),
    ],
)
def test_a_terminal_without_enough_colours_shows_numbers(
    of_text: Path, tmp_path: Path, colours: Any, no_color: bool, numbers: bool
) -> None:
    """With NO_COLOR or 16 colours, words of all charges look alike."""
    [prediction] = atomsep.load_run(of_text).predict(["the cat sleeps"])
    console = SafeConsole(
        file=io.StringIO(), force_terminal=True, color_system=colours, no_color=no_color, width=200
    )
    show(console, "the cat sleeps", prediction, "sentences", Explained(tmp_path, "a run"))
    said = console.file.getvalue()
    assert bool(re.search(r"cat\S*\([+-]0\.\d\d\)", said)) == numbers


def test_the_histogram_of_a_page_has_the_shares_of_the_charges() -> None:
    drawn = histogram([[-1.0, -0.99, 1.0, float("nan")]], "token")
    heights = [float(found) for found in re.findall(r'height="([\d.]+)" fill="#1f2743"', drawn)]
    assert len(heights) == 40
    assert heights[0] == 2 * heights[-1] > 0
    assert not any(heights[1:-1])
    assert "highest bar: 66.7 % of the tokens" in drawn
    assert "highest bar: 0 % of the words" in histogram([], "word")


def test_a_method_without_importance_only_predicts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = finished("cola", "plain", tmp_path)
    assert explain(folder, "the cat sleeps") == 0
    said = capsys.readouterr().out
    assert "The method 'plain' does not measure importance: there are no maps" in said
    assert "acceptable, " in said
    assert not (folder / "explained").exists()


def test_what_cannot_be_explained_is_said_in_a_sentence(
    of_images: Path, of_text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "broken.png").write_bytes(b"\x89PNG half")
    (tmp_path / "empty").mkdir()
    mixtures = finished("synthetic", "atom", tmp_path)
    for arguments, words in (
        ((tmp_path, "x"), "holds no finished run: it has no result.json"),
        ((of_images, "nothing.png"), "there is no file 'nothing.png'; this run takes images"),
        ((of_images, tmp_path / "empty"), "there is no image in the folder"),
        ((of_images, tmp_path / "broken.png"), "broken.png cannot be read as an image"),
        ((of_text, "nothing.txt"), "there is no file 'nothing.txt'; this run takes sentences"),
        ((mixtures, "1"), "synthetic reads neither; in Python, call atomsep.load_run"),
    ):
        assert explain(*arguments) == 1, words
        said = capsys.readouterr()
        assert words in said.err
        assert said.err.count("\n") == 1


def test_a_long_sentence_is_not_taken_for_a_file() -> None:
    assert sentences(["word " * 5000]) == ["word " * 5000]
    with pytest.raises(ExperimentError, match="a sentence is empty"):
        sentences([" "])


def test_a_file_without_sentences_is_named(tmp_path: Path) -> None:
    (tmp_path / "blank.txt").write_text("\n\n")
    with pytest.raises(ExperimentError, match=r"blank.txt holds no sentence"):
        sentences([str(tmp_path / "blank.txt")])
    (tmp_path / "bytes.txt").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ExperimentError, match=r"bytes.txt cannot be read as text"):
        sentences([str(tmp_path / "bytes.txt")])


def test_files_keep_their_order_and_folders_are_sorted(tmp_path: Path) -> None:
    write_images(tmp_path, "b/2.png", "b/1.PNG", "a.png")
    found = image_files([str(tmp_path / "b"), str(tmp_path / "a.png")])
    assert [Path(path).name for path in found] == ["1.PNG", "2.png", "a.png"]
