"""Training images from the layouts that users have."""

from __future__ import annotations

import hashlib
import pickle
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from tiny_gans import bare, task_of
from torchvision import datasets, transforms

from atomsep.experiments.cache import NoRoomError
from atomsep.experiments.errors import ExperimentError
from atomsep.experiments.gan import pictures
from atomsep.experiments.gan.pictures import Pictures, cifar10, digits, folder, mnist, resize
from atomsep.experiments.loading import UnreadableSampleError

EXAMPLE = transforms.Compose(
    [transforms.Resize(64), transforms.CenterCrop(64), transforms.ToTensor()]
)
"""What PyTorch's DCGAN example does to an image before it normalises it."""


def write_idx(path: Path, values: np.ndarray) -> None:
    header = struct.pack(f">BBBB{values.ndim}I", 0, 0, 8, values.ndim, *values.shape)
    path.write_bytes(header + values.astype(np.uint8).tobytes())


def test_mnist_as_torchvision_lays_it_out(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    images, labels = rng.integers(0, 256, (5, 28, 28)), np.array([3, 1, 4, 1, 5])
    raw = tmp_path / "mnist" / "MNIST" / "raw"
    raw.mkdir(parents=True)
    for part in ("train", "t10k"):
        write_idx(raw / f"{part}-images-idx3-ubyte", images)
        write_idx(raw / f"{part}-labels-idx1-ubyte", labels)
    found = mnist(tmp_path, download=False)
    assert found.images.shape == (5, 1, 64, 64)
    assert found.labels is not None
    assert found.labels.tolist() == labels.tolist()
    assert torch.equal(found.images, mnist(tmp_path, download=False, part="test").images)
    stored = datasets.MNIST(str(tmp_path / "mnist"), transform=EXAMPLE)
    for index, (image, _) in enumerate(stored):
        assert torch.equal(found.images[index].float() / 255, image)


def test_cifar10_as_torchvision_lays_it_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(0)
    base = tmp_path / "cifar10" / "cifar-10-batches-py"
    base.mkdir(parents=True)
    contents = {
        f"data_batch_{number}": {
            "data": rng.integers(0, 256, (2, 3072), np.uint8),
            "labels": [7, 2],
        }
        for number in range(1, 6)
    }
    contents["test_batch"] = contents["data_batch_1"]
    contents["batches.meta"] = {"label_names": list("abcdefghij")}
    sums = {}
    for name, content in contents.items():
        (base / name).write_bytes(pickle.dumps(content))
        sums[name] = hashlib.md5((base / name).read_bytes()).hexdigest()
    # Torchvision knows the sums of the whole files.
    train = [[name, sums[name]] for name in sums if name.startswith("data")]
    monkeypatch.setattr(datasets.CIFAR10, "train_list", train)
    monkeypatch.setattr(datasets.CIFAR10, "test_list", [["test_batch", sums["test_batch"]]])
    meta = {"filename": "batches.meta", "key": "label_names", "md5": sums["batches.meta"]}
    monkeypatch.setattr(datasets.CIFAR10, "meta", meta)
    found = cifar10(tmp_path, download=False)
    assert found.images.shape == (10, 3, 64, 64)
    assert found.labels is not None
    assert found.labels.tolist() == [7, 2] * 5
    for index, (image, _) in enumerate(
        datasets.CIFAR10(str(tmp_path / "cifar10"), transform=EXAMPLE)
    ):
        assert torch.equal(found.images[index].float() / 255, image)


def test_a_copy_as_arrays(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (4, 32, 32, 3), np.uint8)
    path = tmp_path / "cifar10" / "train.npz"
    path.parent.mkdir()
    np.savez(path, images=images, labels=np.arange(4))
    found = cifar10(tmp_path, download=False)
    assert torch.equal(found.images[2].float() / 255, EXAMPLE(Image.fromarray(images[2])))
    assert found.labels is not None
    assert found.labels.tolist() == [0, 1, 2, 3]
    np.savez(path, images=images / 255, labels=np.arange(4))
    with pytest.raises(ExperimentError, match="type float64, and 4 labels; it must hold bytes"):
        cifar10(tmp_path, download=False)
    np.savez(path, pixels=images)
    with pytest.raises(ExperimentError, match="must hold the arrays images"):
        cifar10(tmp_path, download=False)
    path.write_bytes(b"half a file")
    with pytest.raises(ExperimentError, match="cannot be read"):
        cifar10(tmp_path, download=False)


def test_images_are_resized_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second process maps them; other files are resized again; without room they are not kept."""
    rng = np.random.default_rng(0)
    path = tmp_path / "mnist" / "train.npz"
    path.parent.mkdir()
    pixels = rng.integers(0, 256, (4, 28, 28), np.uint8)
    np.savez(path, images=pixels, labels=np.arange(4))
    first = mnist(tmp_path, download=False)
    calls: list[int] = []

    def counting(arrays: Any, channels: int) -> Any:
        calls.append(len(arrays))
        return resize(arrays, channels)

    monkeypatch.setattr(pictures, "resize", counting)
    again = mnist(tmp_path, download=False)
    assert calls == []
    assert torch.equal(first.images, again.images)
    np.savez(path, images=pixels[:3], labels=np.arange(3))
    assert len(mnist(tmp_path, download=False)) == 3
    assert calls == [3]

    def full(*args: Any) -> Any:
        raise NoRoomError("the disk is full")

    monkeypatch.setattr(pictures, "cached_arrays", full)
    assert torch.equal(mnist(tmp_path, download=False).images, first.images[:3])
    assert calls == [3, 3]


def test_missing_and_damaged_data(tmp_path: Path) -> None:
    with pytest.raises(ExperimentError, match="MNIST is not in .*--download.*--data"):
        mnist(tmp_path, download=False)
    base = tmp_path / "cifar10" / "cifar-10-batches-py"
    base.mkdir(parents=True)
    (base / "data_batch_1").write_bytes(b"half a file")
    with pytest.raises(ExperimentError, match="CIFAR10 is not in .*, or is damaged"):
        cifar10(tmp_path, download=False)


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """Two images in one class, one in another, of different sizes, and a file that is none."""
    rng = np.random.default_rng(0)
    root = tmp_path / "images"
    for name, shape in (("b/1.png", (70, 90, 3)), ("a/2.PNG", (100, 64)), ("a/x/3.jpg", (30, 40))):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, shape, np.uint8)).save(path)
    (root / "a" / "notes.txt").write_text("no image")
    return root


@pytest.fixture
def decodings(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Sides of the images that were decoded."""
    found: list[int] = []
    resized = pictures._resized

    def counting(image: Any, channels: int, side: int) -> Any:
        found.append(side)
        return resized(image, channels, side)

    monkeypatch.setattr(pictures, "_resized", counting)
    return found


def test_any_folder_of_images(images: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    found = folder(images, 3, cache)
    assert found.images.shape == (3, 3, 64, 64)
    assert found.labels is not None
    assert found.labels.tolist() == [0, 0, 1]
    expected = EXAMPLE(Image.open(images / "b/1.png"))
    assert torch.equal(found.images[2].float() / 255, expected)
    assert folder(images, 1, cache).images.shape == (3, 1, 64, 64)
    assert folder(images / "b", 3, cache).labels is None


def test_a_folder_is_decoded_once(images: Path, tmp_path: Path, decodings: list[int]) -> None:
    """For each size and number of channels, and again if a file changes."""
    cache = tmp_path / "cache"
    first = folder(images, 3, cache)
    again = folder(images, 3, cache)
    assert decodings == [64] * 3
    assert torch.equal(first.images, again.images)
    assert again.labels is not None
    assert again.labels.tolist() == [0, 0, 1]
    assert folder(images, 3, cache, side=32).images.shape == (3, 3, 32, 32)
    assert decodings == [64] * 3 + [32] * 3
    Image.new("RGB", (64, 64), (1, 2, 3)).save(images / "b/1.png")
    assert folder(images, 3, cache).images[2, :, 0, 0].tolist() == [1, 2, 3]
    assert len(decodings) == 9


def test_a_folder_without_room_on_the_disk_is_read_into_memory(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (images / "a" / "0.png").write_bytes(b"no picture")
    kept = folder(images, 3, tmp_path / "cache", skip_unreadable=True)

    def full(*args: Any, **options: Any) -> Any:
        raise NoRoomError("the disk is full")

    monkeypatch.setattr(pictures, "cached_arrays", full)
    read = folder(images, 3, tmp_path / "cache", skip_unreadable=True)
    assert torch.equal(read.images, kept.images)
    assert read.unreadable == kept.unreadable


def test_images_that_cannot_be_read_are_named_and_counted(
    tmp_path: Path, decodings: list[int]
) -> None:
    images, cache = tmp_path / "images", tmp_path / "cache"
    images.mkdir()
    with pytest.raises(ExperimentError, match="it holds no image"):
        folder(images, 3, cache)
    (images / "bad.png").write_bytes(b"no picture")
    with pytest.raises(UnreadableSampleError, match="bad.png.* cannot be read.*unreadable=skip"):
        folder(images, 3, cache)
    with pytest.raises(ExperimentError, match="none of its 1 images can be read"):
        folder(images, 3, cache, skip_unreadable=True)
    Image.new("RGB", (64, 64)).save(images / "good.png")
    for _ in range(2):  # decoded, then from the cache
        found = folder(images, 3, cache, skip_unreadable=True)
        assert len(found) == 1
        [name] = found.unreadable
        assert name.split()[0] == str(images / "bad.png")
    assert len(decodings) == 1
    with pytest.raises(UnreadableSampleError, match="bad.png.* cannot be read"):
        folder(images, 3, cache)  # which a run that leaves it out has decoded


def test_the_digits_are_embedded() -> None:
    found = digits(3)
    assert found.images.shape == (1797, 3, 64, 64)
    assert found.labels is not None
    assert found.labels.unique().tolist() == list(range(10))
    assert int(found.images.max()) == 255


def test_images_that_do_not_fit_stay_on_the_host() -> None:
    """Batches are the same wherever the images are."""
    key = bare("plain", 0)
    there, here = task_of(key), task_of(key, data_on="host")
    for first, second in zip(there.batches(0, 0), here.batches(0, 0), strict=True):
        assert torch.equal(first, second)


def test_images_stay_on_the_host_if_another_process_took_the_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Unless the user asked for the device."""
    move = Pictures.to
    asked: list[torch.device] = []

    def refuse_once(pictures: Pictures, device: torch.device) -> Pictures:
        asked.append(device)
        if len(asked) == 1:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return move(pictures, device)

    monkeypatch.setattr(Pictures, "to", refuse_once)
    assert len(list(task_of(bare("plain", 0)).batches(0, 0))) > 0
    assert len(asked) == 2
    asked.clear()
    with pytest.raises(torch.OutOfMemoryError):
        task_of(bare("plain", 0), data_on="device")
