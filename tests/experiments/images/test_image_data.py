"""Images from disk, in the layouts of their publishers; splits; what is refused."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from atomsep.experiments.errors import ExperimentError
from atomsep.experiments.images.data import decode, image_files, read_flowers, read_pets
from atomsep.experiments.images.experiments import FLOWERS, IMAGENET, OWN_IMAGES, PETS
from atomsep.experiments.images.folders import read_folder, read_imagenet, read_own_images
from atomsep.experiments.machine import Machine, make_fabric
from atomsep.experiments.registry import run_key
from atomsep.experiments.task import Context, Experiment
from atomsep.experiments.training import train

QUICK = ("epochs=1", "batch=4", "image=16", "stages=1", "stem=cifar")


def paint(file: Path, seed: int = 0, mode: str = "RGB") -> Path:
    """Write a small image."""
    file.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 255, (20, 24, 3), dtype=np.uint8)
    Image.fromarray(pixels).convert(mode).save(file)
    return file


def context_of(
    experiment: Experiment, data: Path, *changes: str, download: bool = False, **options: Any
) -> Context:
    settings = run_key(experiment, "plain", 0, changes).settings
    fabric = make_fabric(Machine(device="cpu"), "32-true")
    return Context(settings, "plain", 0, fabric, data, download=download, **options)


def files(samples: Any) -> set[str]:
    return set(samples.names)


def labels(samples: Any) -> list[int]:
    return [samples.load(index)[1] for index in range(len(samples))]


@pytest.fixture
def pets(tmp_path: Path) -> Path:
    """Three breeds of the real names, ten training and two test images each."""
    base = tmp_path / "oxford-iiit-pet"
    rows: dict[str, list[str]] = {"trainval": [], "test": []}
    for label, breed in enumerate(("Abyssinian", "american_bulldog", "Bengal"), 1):
        for number in range(12):
            paint(base / "images" / f"{breed}_{number}.jpg", seed=100 * label + number)
            split = "test" if number >= 10 else "trainval"
            rows[split].append(f"{breed}_{number} {label} 1 {number}")
    (base / "annotations").mkdir()
    for split, lines in rows.items():
        (base / "annotations" / f"{split}.txt").write_text("\n".join(lines) + "\n")
    return tmp_path


@pytest.fixture
def flowers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Six images a split in torchvision's layout, whose checksums are those of the real files."""
    from scipy.io import savemat
    from torchvision.datasets import Flowers102

    base = tmp_path / "flowers-102"
    for number in range(1, 19):
        paint(base / "jpg" / f"image_{number:05d}.jpg", seed=number)
    ids = np.arange(1, 19)
    savemat(base / "imagelabels.mat", {"labels": (ids % 3 + 1)[None]})
    savemat(
        base / "setid.mat",
        {"trnid": ids[None, :6], "valid": ids[None, 6:12], "tstid": ids[None, 12:]},
    )
    sums = {
        key: (name, hashlib.md5((base / name).read_bytes()).hexdigest())
        for key, name in (("label", "imagelabels.mat"), ("setid", "setid.mat"))
    }
    monkeypatch.setattr(Flowers102, "_file_dict", {**Flowers102._file_dict, **sums})
    return tmp_path


def make_folder(folder: Path, counts: dict[str, int]) -> Path:
    """Classes with so many images each."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, count in counts.items():
        (folder / name).mkdir()
        for number in range(count):
            paint(folder / name / f"{number}.png", seed=number)
    return folder


def test_pets_follow_the_official_lists(pets: Path) -> None:
    train, test = read_pets(context_of(PETS, pets))
    assert list(train.classes) == ["Abyssinian", "American Bulldog", "Bengal"]
    assert (len(train), len(test)) == (30, 6)
    assert labels(test) == [0, 0, 1, 1, 2, 2]
    assert test.names[2].endswith("american_bulldog_10.jpg")


def test_validation_of_pets_is_a_fifth_of_every_class_and_no_test_sample(pets: Path) -> None:
    _, test = read_pets(context_of(PETS, pets))
    train, held_out = read_pets(context_of(PETS, pets, validation=True))
    again = read_pets(context_of(PETS, pets, validation=True))[1]
    assert sorted(labels(held_out)) == [0, 0, 1, 1, 2, 2]
    assert len(train) == 24
    assert not files(train) & files(held_out)
    assert not (files(train) | files(held_out)) & files(test)
    assert files(held_out) == files(again)


def test_flowers_train_on_train_and_val_and_search_on_val(flowers: Path) -> None:
    train, test = read_flowers(context_of(FLOWERS, flowers))
    less, val = read_flowers(context_of(FLOWERS, flowers, validation=True))
    assert [len(each) for each in (train, test, less, val)] == [12, 6, 6, 6]
    assert files(train) == files(less) | files(val)
    assert not files(train) & files(test)
    assert labels(test)[:3] == [13 % 3, 14 % 3, 15 % 3]
    assert len(train.classes) in (3, 102)  # older torchvision has no names


@pytest.mark.parametrize("validation", [False, True])
def test_real_layouts_train(pets: Path, flowers: Path, tmp_path: Path, validation: bool) -> None:
    for experiment in (PETS, FLOWERS):
        key = run_key(experiment, "atom", 0, QUICK, validation=validation)
        machine = Machine(device="cpu", data=pets, tensorboard=False)
        result = train(experiment, key, tmp_path / "runs", machine)
        assert 0 <= result["metrics"]["top1"] <= 1
        assert result["unreadable"] == []


def test_imagenet_reads_train_and_val(tmp_path: Path) -> None:
    counts = {"n01440764": 10, "n02102040": 20}
    make_folder(tmp_path / "imagenet" / "train", counts)
    make_folder(tmp_path / "imagenet" / "val", {"n02102040": 3})
    train, test = read_imagenet(context_of(IMAGENET, tmp_path))
    assert (len(train), len(test)) == (30, 3)
    assert set(labels(test)) == {1}  # classes are those of the training samples
    less, held_out = read_imagenet(context_of(IMAGENET, tmp_path, validation=True))
    assert sorted(labels(held_out)) == [0, 1, 1]
    assert files(less) | files(held_out) == files(train)
    elsewhere = context_of(IMAGENET, Path("nowhere"), f"folder={tmp_path / 'imagenet'}")
    assert len(read_imagenet(elsewhere)[0]) == 30


def test_a_folder_of_classes_is_split_by_class_and_always_alike(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "mine", {"a": 10, "b": 5, "c": 1, ".cache": 1})
    train, test = read_folder(folder)
    assert sorted(labels(test)) == [0, 0, 1]
    assert not files(train) & files(test)
    assert len(train) + len(test) == 16
    assert files(read_folder(folder)[1]) == files(test)
    less, held_out = read_folder(folder, validation=True)
    assert not files(held_out) & files(test)
    assert files(less) | files(held_out) == files(train)


def test_test_may_be_called_test(tmp_path: Path) -> None:
    make_folder(tmp_path / "train", {"a": 2, "b": 2})
    make_folder(tmp_path / "test", {"a": 1})
    assert len(read_folder(tmp_path)[1]) == 1


OWN_DATA = """
from PIL import Image

def data():
    rows = [(Image.new("L", (20, 20), 90 * (i % 2)), i % 2) for i in range(8)]
    return rows, rows[:4]

def wrong():
    return 3

def single():
    rows = [(Image.new("L", (20, 20)), 0)] * 4
    return rows, rows
"""


@pytest.fixture
def own_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    name = f"images_{abs(hash(str(tmp_path)))}"
    (tmp_path / f"{name}.py").write_text(OWN_DATA)
    monkeypatch.syspath_prepend(str(tmp_path))
    return name


def test_data_from_a_function(own_module: str, tmp_path: Path) -> None:
    context = context_of(OWN_IMAGES, tmp_path, f"folder={own_module}:data")
    train, test = read_own_images(context)
    assert (len(train), len(test), list(train.classes)) == (8, 4, ["0", "1"])
    image, label = train.load(3)
    assert (image.mode, label) == ("RGB", 1)
    for name in ("wrong", "single"):
        with pytest.raises(ExperimentError, match=f"{name} must return"):
            read_own_images(context_of(OWN_IMAGES, tmp_path, f"folder={own_module}:{name}"))


@pytest.mark.parametrize("mode", ["L", "P", "CMYK", "1", "RGBA"])
def test_all_kinds_of_images_become_rgb(tmp_path: Path, mode: str) -> None:
    file = paint(tmp_path / ("x.jpg" if mode == "CMYK" else "x.png"), mode=mode)
    assert decode(file).mode == "RGB"


def test_a_palette_with_transparency_is_read_quietly(tmp_path: Path) -> None:
    image = Image.new("P", (20, 20))
    image.save(tmp_path / "x.png", transparency=bytes([0, 128]))
    assert decode(tmp_path / "x.png").mode == "RGB"


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    folder = make_folder(tmp_path / "mine", {"a": 20, "b": 20})
    file = folder / "b" / "7.png"
    file.write_bytes(file.read_bytes()[:300])
    (folder / "a" / "3.png").write_bytes(b"this is text")
    return folder


@pytest.mark.parametrize(("place", "workers"), [("loader", 0), ("loader", 1), ("device", 0)])
def test_a_damaged_image_stops_the_run_by_its_name(
    damaged: Path, tmp_path: Path, place: str, workers: int
) -> None:
    key = run_key(OWN_IMAGES, "plain", 0, [*QUICK, f"folder={damaged}"])
    where = {"data": tmp_path, "data_on": place, "workers": workers}
    machine = Machine(device="cpu", tensorboard=False, **where)  # type: ignore[arg-type]
    with pytest.raises(ExperimentError) as caught:
        train(OWN_IMAGES, key, tmp_path / "runs", machine)
    assert re.search(
        r"[ab]/[73]\.png \(.*\) cannot be read; repair or remove it", str(caught.value)
    )
    assert "\n" not in str(caught.value)
    assert "unreadable=skip" in str(caught.value)


@pytest.mark.parametrize("place", ["loader", "device", "host"])
def test_damaged_images_are_left_out_by_choice_and_counted(
    damaged: Path, tmp_path: Path, place: str
) -> None:
    key = run_key(OWN_IMAGES, "atom", 0, [*QUICK, f"folder={damaged}", "unreadable=skip"])
    machine = Machine(device="cpu", data=tmp_path, data_on=place, tensorboard=False)
    result = train(OWN_IMAGES, key, tmp_path / "runs", machine)
    assert len(result["unreadable"]) == 2
    assert "a/3.png" in result["unreadable"][0]
    assert "b/7.png" in result["unreadable"][1]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        ({}, "is empty; its layout must be FOLDER/train/CLASS"),
        ({"train/a": 2, "train/b": 2}, "has train/ but neither val/ nor test/"),
        ({"a": 3}, "holds only one class, 'a'; a classifier needs two"),
        ({"a": 3, "b": 0}, "b holds no images; fill it or remove it"),
        ({"a": 0, "b": 0}, "hold no images (.jpg"),
        ({".": 3}, "holds no class folders; the layout must be FOLDER/train/CLASS"),
        ({"train/a": 2, "train/b": 2, "val/c": 1}, "no class 'c' among the training samples, but"),
    ],
)
def test_other_layouts_are_refused(make: dict[str, int], message: str, tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    for name, count in make.items():
        (folder / name).mkdir(parents=True, exist_ok=True)
        for number in range(count):
            paint(folder / name / f"{number}.png")
    with pytest.raises(ExperimentError) as caught:
        read_folder(folder)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("experiment", "read", "message"),
    [
        (
            PETS,
            read_pets,
            "there is no folder {data}/oxford-iiit-pet; fetch OxfordIIITPet with --download",
        ),
        (
            FLOWERS,
            read_flowers,
            "there is no folder {data}/flowers-102; fetch Flowers102 with --download",
        ),
        (IMAGENET, read_imagenet, "there is no folder {data}/imagenet; put ImageNet there"),
        (OWN_IMAGES, read_own_images, "name the folder of the images with --set folder=FOLDER"),
    ],
)
def test_missing_data_says_what_to_do(
    experiment: Experiment, read: Any, message: str, tmp_path: Path
) -> None:
    with pytest.raises(ExperimentError) as caught:
        read(context_of(experiment, tmp_path))
    assert message.format(data=tmp_path) in str(caught.value)


def test_imagenet_cannot_be_downloaded(tmp_path: Path) -> None:
    with pytest.raises(ExperimentError, match="--download cannot fetch ImageNet"):
        read_imagenet(context_of(IMAGENET, tmp_path, download=True))


@pytest.mark.parametrize(
    ("read", "name"), [(read_pets, "oxford-iiit-pet"), (read_flowers, "flowers-102")]
)
def test_a_data_set_of_another_layout(read: Any, name: str, tmp_path: Path) -> None:
    paint(tmp_path / name / "images" / "x.jpg")
    with pytest.raises(ExperimentError, match="does not hold .*; remove it and use --download"):
        read(context_of(PETS, tmp_path))


def test_damaged_lists(pets: Path) -> None:
    file = pets / "oxford-iiit-pet" / "annotations" / "trainval.txt"
    file.write_text("Abyssinian_1 one\n")
    with pytest.raises(ExperimentError, match="does not hold"):
        read_pets(context_of(PETS, pets))
    file.write_text("")
    with pytest.raises(ExperimentError, match="the trainval list in .* is empty"):
        read_pets(context_of(PETS, pets))


def test_download_is_torchvisions(flowers: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is there is not fetched again; what cannot be fetched is a sentence."""
    from torchvision.datasets import flowers102

    def refuse(*args: Any, **options: Any) -> None:
        raise OSError("no route to host")

    monkeypatch.setattr(flowers102, "download_and_extract_archive", refuse)
    assert len(read_flowers(context_of(FLOWERS, flowers, download=True))[1]) == 6
    with pytest.raises(ExperimentError, match=r"cannot be fetched into .*no route to host"):
        read_flowers(context_of(FLOWERS, flowers / "elsewhere", download=True))


def test_a_label_out_of_range_is_refused(tmp_path: Path) -> None:
    from atomsep.experiments.loading import LoaderFeed

    samples = image_files([paint(tmp_path / "x.png")] * 4, [0, 1, 2, 1], ["a", "b"])
    feed = LoaderFeed(samples, lambda image, key: 0.0, batch=4, seed=0)
    with pytest.raises(ExperimentError, match="has label 2, but there are 2 classes"):
        next(feed.batches())
