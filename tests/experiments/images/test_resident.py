"""Decoded images: the loader's batches, wherever they are kept, and the same training."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_digits

from atomsep.experiments.cache import NoRoomError
from atomsep.experiments.errors import ExperimentError
from atomsep.experiments.images import feeds, resident
from atomsep.experiments.images.augmentation import Augmentation
from atomsep.experiments.images.data import image_files
from atomsep.experiments.images.decoded import Decoded, decode_once
from atomsep.experiments.images.experiments import OWN_IMAGES
from atomsep.experiments.images.resident import ResidentFeed
from atomsep.experiments.loading import Batch, LoaderFeed, Shard, UnreadableSampleError
from atomsep.experiments.machine import Machine, make_fabric
from atomsep.experiments.registry import run_key
from atomsep.experiments.samples import Samples
from atomsep.experiments.task import Context
from atomsep.experiments.training import train

CPU = torch.device("cpu")
CUDA = torch.device("cuda", 0)
LEVEL = 1.01 / 255 / 0.224  # of a normalised image
QUICK = ("image=16", "stages=1", "stem=cifar", "learning_rate=0.02")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two classes of 13 photographs each, no two of one size."""
    folder = tmp_path_factory.mktemp("photographs")
    rng = np.random.default_rng(0)
    for number in range(26):
        file = folder / "ab"[number % 2] / f"{number}.png"
        file.parent.mkdir(exist_ok=True)
        coarse = Image.fromarray(rng.integers(0, 256, (6, 6, 3), dtype=np.uint8))
        coarse.resize((20 + 3 * number, 70 - number)).save(file)
    return folder


@pytest.fixture
def samples(files: Path) -> Samples:
    found = sorted(files.rglob("*.png"), key=lambda file: int(file.stem))
    return image_files(found, [int(file.stem) % 2 for file in found], ["a", "b"])


@pytest.fixture
def damaged(tmp_path: Path, samples: Samples) -> Samples:
    broken = tmp_path / "text.png"
    broken.write_bytes(b"this is text")
    names = [*samples.names[:7], str(broken), *samples.names[8:]]
    return image_files(names, samples.labels, samples.classes)


def resident_feed(decoded: Decoded, recipe: Augmentation, **options: Any) -> ResidentFeed:
    return ResidentFeed(
        decoded, recipe, **{"device": CPU, "classes": 2, "batch": 8, "seed": 3, **options}
    )


def check_equal(one: Batch, other: Batch, tolerance: float) -> None:
    assert torch.equal(one.labels, other.labels)
    assert one.inputs.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(one.inputs, other.inputs, rtol=0, atol=tolerance)
    assert (one.second is None) == (other.second is None)
    if one.second is not None:
        torch.testing.assert_close(one.second, other.second, rtol=0, atol=tolerance)
    assert one.unreadable == other.unreadable


RECIPES = {
    "none": (Augmentation("none", 24), 0.0),
    "pad-crop-flip": (Augmentation("pad-crop-flip", 24), 0.0),
    "crop-flip": (Augmentation("crop-flip", 24, 0.2), LEVEL),
    "crop-flip-colour": (Augmentation("crop-flip-colour", 24, 0.2), 4.5 * LEVEL),
}


@pytest.mark.parametrize("place", ["device", "host"])
@pytest.mark.parametrize("name", RECIPES)
def test_batches_are_the_loader_s(samples: Samples, tmp_path: Path, name: str, place: str) -> None:
    recipe, tolerance = RECIPES[name]
    loader = LoaderFeed(samples, recipe, batch=8, seed=3, views=2)
    decoded = decode_once(samples, recipe, tmp_path)
    feed = resident_feed(decoded, recipe, place=place, views=2)
    assert feed.steps == loader.steps == 4
    for epoch, start in ((0, 0), (2, 1), (2, 4)):
        ours, theirs = list(feed.batches(epoch, start)), list(loader.batches(epoch, start))
        for one, other in zip(ours, theirs, strict=True):
            check_equal(one, other, tolerance)
            assert (name == "none") == torch.equal(one.inputs, one.second)


@pytest.mark.parametrize("place", ["device", "host"])
def test_evaluation_is_the_loader_s_to_the_bit(
    samples: Samples, tmp_path: Path, place: str
) -> None:
    recipe, shard = Augmentation("none", 24), Shard(1, 3)
    options: dict[str, Any] = {"shuffle": False, "shard": shard}
    loader = LoaderFeed(samples, recipe, batch=4, seed=3, **options)
    decoded = decode_once(samples, recipe, tmp_path)
    feed = resident_feed(decoded, recipe, batch=4, place=place, **options)
    for one, other in zip(feed.batches(), loader.batches(), strict=True):
        check_equal(one, other, 0)


@pytest.mark.parametrize("place", ["device", "host"])
def test_a_batch_in_pieces_is_the_same(
    samples: Samples, tmp_path: Path, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = Augmentation("crop-flip-colour", 24, 0.2)
    feed = resident_feed(decode_once(samples, recipe, tmp_path), recipe, place=place)
    whole = list(feed.batches(1))
    monkeypatch.setattr(resident, "MOST", 3 * 48 * 48 * 3)
    for one, other in zip(whole, feed.batches(1), strict=True):
        check_equal(one, other, 1e-5)


def test_images_are_decoded_once_and_again_if_they_change(files: Path, tmp_path: Path) -> None:
    names = [tmp_path / "0.png", *sorted(files.rglob("*.png"))[:3]]
    Image.new("RGB", (30, 40), (1, 2, 3)).save(names[0])
    samples = image_files(names, [0, 1, 0, 1], ["a", "b"])
    recipe, seen = Augmentation("crop-flip", 24), []

    def decode() -> Decoded:
        return decode_once(
            samples, recipe, tmp_path / "cache", progress=lambda *done: seen.append(done)
        )

    first = decode()
    assert seen == [(1, 4), (2, 4), (3, 4), (4, 4)]
    again = decode()
    assert len(seen) == 4
    assert torch.equal(first.pixels, again.pixels)
    assert first.images[0].tolist() == [0, 40, 30]
    assert first.pixels[: 3 * 30].tolist() == [1] * 30 + [2] * 30 + [3] * 30
    Image.new("RGB", (30, 40), (4, 5, 6)).save(names[0])
    os.utime(names[0], ns=(1, 1))
    assert decode().pixels[: 3 * 30].tolist() == [4] * 30 + [5] * 30 + [6] * 30
    assert len(seen) == 8


def test_large_images_are_kept_reduced(samples: Samples, tmp_path: Path) -> None:
    small = decode_once(samples, Augmentation("crop-flip", 16), tmp_path)
    large = decode_once(samples, Augmentation("crop-flip", 16, stored=64), tmp_path)
    assert small.images[:, 1:].amin(1).max() == 32
    assert large.images[:, 1:].amin(1).max() > 45
    assert small.pixels.numel() < 0.6 * large.pixels.numel()


@pytest.mark.parametrize("place", ["device", "host"])
def test_unreadable_images_are_left_out_as_by_the_loader(
    damaged: Samples, tmp_path: Path, place: str
) -> None:
    recipe = Augmentation("crop-flip", 24, 0.2)
    loader = LoaderFeed(damaged, recipe, batch=8, seed=3, skip_unreadable=True)
    for _ in range(2):  # decoded, then from the cache
        decoded = decode_once(damaged, recipe, tmp_path / "cache", skip_unreadable=True)
        feed = resident_feed(decoded, recipe, place=place)
        for one, other in zip(feed.batches(), loader.batches(), strict=True):
            check_equal(one, other, LEVEL)
        assert [name.split()[0] for name in decoded.unreadable.values()] == [damaged.names[7]]


def test_an_unreadable_image_stops_even_if_an_earlier_run_left_it_out(
    damaged: Samples, tmp_path: Path
) -> None:
    recipe = Augmentation("none", 24)
    for skipped_before in (False, True):
        if skipped_before:
            decode_once(damaged, recipe, tmp_path / "cache", skip_unreadable=True)
        with pytest.raises(UnreadableSampleError, match=r"text\.png \(.*\) cannot be read"):
            decode_once(damaged, recipe, tmp_path / "cache")


def test_a_whole_batch_that_cannot_be_read_is_an_error(damaged: Samples, tmp_path: Path) -> None:
    recipe = Augmentation("none", 24)
    only = damaged.take([7, 7, 1, 2])
    decoded = decode_once(only, recipe, tmp_path, skip_unreadable=True)
    feed = resident_feed(decoded, recipe, batch=2, shuffle=False)
    with pytest.raises(UnreadableSampleError, match="no sample of a batch can be read"):
        list(feed.batches())


def test_a_label_out_of_range_is_refused(samples: Samples, tmp_path: Path) -> None:
    recipe = Augmentation("none", 24)
    decoded = decode_once(samples, recipe, tmp_path)
    with pytest.raises(ExperimentError, match="has label 1, but there are 1 classes"):
        resident_feed(decoded, recipe, classes=1)


def run(
    files: Path, root: Path, place: str, *changes: str, method: str = "plain", seed: int = 0
) -> Any:
    key = run_key(OWN_IMAGES, method, seed, [*QUICK, f"folder={files}", "batch=8", *changes])
    where = Machine(device="cpu", data=root / "data", data_on=place, tensorboard=False)
    result = train(OWN_IMAGES, key, root / place, where)
    lines = (key.folder(root / place) / "metrics.jsonl").read_text().splitlines()
    return result, [json.loads(line) for line in lines]


@pytest.mark.parametrize(
    ("place", "augmentation", "epochs"),
    [("device", "none", 10), ("host", "none", 1), ("device", "pad-crop-flip", 1)],
)
def test_training_is_the_loader_s_to_the_bit(
    files: Path, tmp_path: Path, place: str, augmentation: str, epochs: int
) -> None:
    """Ten epochs are 100 steps."""
    changes = (f"epochs={epochs}", f"augmentation={augmentation}", "batch=2")
    results = [run(files, tmp_path, each, *changes) for each in ("loader", place)]
    curves = [[line["cross-entropy"] for line in lines] for _, lines in results]
    assert len(set(curves[0])) == epochs
    assert curves[0] == curves[1]
    assert results[0][0]["metrics"] == results[1][0]["metrics"]


def test_training_with_crops_is_close_to_the_loader_s(files: Path, tmp_path: Path) -> None:
    changes = ("epochs=3", "augmentation=crop-flip-colour", "crop_scale=0.3", "weight=0.01")
    curves = []
    for place in ("loader", "device", "host"):
        first, *lines = run(files, tmp_path, place, *changes, method="simclr")[1]
        assert "gradient_share" in first, "the share of the first step has a line of its own"
        curves.append([line["cross-entropy"] + line["method"] for line in lines])
    assert curves[1] == pytest.approx(curves[0], rel=0.03)
    assert curves[2] == pytest.approx(curves[1], rel=1e-4)
    assert curves[0] != pytest.approx(curves[0][::-1], rel=0.03), "the curve is not flat"


@pytest.mark.slow
def test_accuracy_over_five_seeds_is_the_loader_s_within_noise(tmp_path: Path) -> None:
    """The same crops, resized by other arithmetic: no difference over pairs, but for one image."""
    digits = load_digits()
    for number, (pixels, label) in enumerate(zip(digits.images, digits.target, strict=True)):
        if number < 450:
            part = "train" if number % 3 else "val"
            file = tmp_path / "digits" / part / str(label) / f"{number}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray((pixels * 15.9).astype("uint8")).resize((24, 24)).save(file)
    changes = ("epochs=4", "batch=32", "learning_rate=0.1", "crop_scale=0.4", "evaluate_every=0")
    accuracy = np.array(
        [
            [
                run(tmp_path / "digits", tmp_path, place, *changes, seed=seed)[0]["metrics"]["top1"]
                for seed in range(5)
            ]
            for place in ("loader", "device")
        ]
    )
    loader, device = accuracy
    assert loader.mean() > 0.25, "it learns more than chance, which is 0.1"
    differences, one_image = device - loader, 1 / 150
    error = 2 * differences.std(ddof=1) / 5**0.5
    assert abs(differences.mean()) <= error + one_image


def make_context(files: Path, data: Path, place: str = "auto", tiny: bool = False) -> Context:
    changes = [*QUICK] if tiny else [*QUICK, f"folder={files}"]
    settings = run_key(OWN_IMAGES, "plain", 0, changes, tiny=tiny).settings
    fabric = make_fabric(Machine(device="cpu"), "32-true")
    return Context(settings, "plain", 0, fabric, data, tiny=tiny, data_on=place)


def feed_of(context: Context) -> Any:
    return OWN_IMAGES.build(context).feed  # type: ignore[attr-defined]


def test_a_cpu_loads_images_and_keeps_nothing(files: Path, tmp_path: Path) -> None:
    assert isinstance(feed_of(make_context(files, tmp_path / "data")), LoaderFeed)
    assert not (tmp_path / "data").exists()
    kept = feed_of(make_context(files, tmp_path / "data", "device"))
    assert isinstance(kept, ResidentFeed)
    assert kept.on_device
    assert not feed_of(make_context(files, tmp_path / "data", "host")).on_device


def test_embedded_samples_are_loaded_and_nothing_else(files: Path, tmp_path: Path) -> None:
    assert isinstance(feed_of(make_context(files, tmp_path, tiny=True)), LoaderFeed)
    with pytest.raises(ExperimentError, match="--data-on device needs image files"):
        feed_of(make_context(files, tmp_path, "device", tiny=True))


def no_room(*arguments: Any, **options: Any) -> Any:
    raise NoRoomError("the disk is full")


def test_a_full_disk_falls_back_to_the_loader_unless_asked(
    files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feeds, "decode_once", no_room)
    monkeypatch.setattr(feeds, "_is_kept", lambda context, *sets: True)
    with pytest.warns(UserWarning, match="decoded again in every epoch: the disk is full"):
        assert isinstance(feed_of(make_context(files, tmp_path)), LoaderFeed)
    with pytest.raises(NoRoomError, match="the disk is full"):
        feed_of(make_context(files, tmp_path, "host"))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("place", ["device", "host"])
@pytest.mark.parametrize("name", RECIPES)
def test_a_gpu_makes_the_loader_s_batches(
    samples: Samples, tmp_path: Path, name: str, place: str
) -> None:
    recipe, tolerance = RECIPES[name]
    loader = LoaderFeed(samples, recipe, batch=8, seed=3, views=2)
    decoded = decode_once(samples, recipe, tmp_path)
    feed = resident_feed(decoded, recipe, device=CUDA, place=place, views=2)
    for one, other in zip(feed.batches(1), loader.batches(1), strict=True):
        assert one.inputs.is_contiguous(memory_format=torch.channels_last)
        check_equal(Batch(*(each.cpu() for each in one[:3])), other, max(tolerance, 1e-6))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype feature")
def test_a_step_does_not_wait_for_the_gpu(samples: Samples, tmp_path: Path) -> None:
    recipe = Augmentation("crop-flip-colour", 24, 0.2)
    feed = resident_feed(decode_once(samples, recipe, tmp_path), recipe, device=CUDA, views=2)
    assert feed.on_device
    batches = feed.batches()
    next(batches)
    try:
        torch.cuda.set_sync_debug_mode("error")
        assert len(list(batches)) == 3
    finally:
        torch.cuda.set_sync_debug_mode("default")
