"""Where data is kept: by the memory that is free, and on the host if the device has none left."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from atomsep.experiments import machine
from atomsep.experiments.errors import ExperimentError
from atomsep.experiments.gan.pictures import Pictures
from atomsep.experiments.gan.sampling import gather
from atomsep.experiments.images.augmentation import Augmentation
from atomsep.experiments.images.data import image_files
from atomsep.experiments.images.decoded import Decoded, decode_once
from atomsep.experiments.images.resident import ResidentFeed
from atomsep.experiments.machine import Machine, move_if_it_fits, place_for
from atomsep.experiments.text.feed import tokenise
from atomsep.experiments.text.tiny import agreement, tiny_encoder

CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)
FAKE = torch.device("meta")
"""A device without memory, in the place of a GPU."""

RECIPE = Augmentation("crop-flip-colour", 24, 0.2)


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every device has room."""
    monkeypatch.setattr(machine, "_free_memory", lambda device: 10**12)


@pytest.fixture
def full(large: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every device has room when it is asked, and none when something is moved to it."""
    move = Tensor.to

    def refuse(tensor: Tensor, *where: Any, **how: Any) -> Tensor:
        if where == (FAKE,):
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return move(tensor, *where, **how)

    monkeypatch.setattr(Tensor, "to", refuse)


def test_a_place_is_chosen_by_the_free_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_free_memory", lambda device: 1000)
    assert place_for(100, "auto", CUDA) == "device"
    assert place_for(101, "auto", CUDA) == "host"
    assert place_for(800, "device", CUDA) == "device"
    assert place_for(1, "host", CUDA) == "host"
    assert place_for(10**15, "auto", CPU) == "device"
    with pytest.raises(ExperimentError, match=r"has 0\.0 GB left, of which a fifth must .* host"):
        place_for(801, "device", CUDA)


def test_an_unknown_place_is_refused() -> None:
    with pytest.raises(ExperimentError, match="--data-on must be auto, device, host or loader"):
        Machine(data_on="gpu")


def of_images(folder: Path, place: str) -> torch.device:
    feed = ResidentFeed(
        decoded(folder, RECIPE), RECIPE, device=FAKE, place=place, classes=2, batch=4, seed=0
    )
    assert feed.on_device == (feed.pixels.device == FAKE)
    return feed.pixels.device


def of_pictures(folder: Path, place: str) -> torch.device:
    pictures = Pictures(torch.zeros(4, 1, 8, 8, dtype=torch.uint8), None)
    return move_if_it_fits(pictures.to, pictures.nbytes, place, FAKE)[0].images.device


def of_text(folder: Path, place: str) -> torch.device:
    texts, _ = agreement(8, 1)
    tokenizer, _ = tiny_encoder(texts.stored, 2)
    tokens = tokenise(texts, tokenizer, 6, FAKE, place)
    [device] = {each.device for each in (*tokens.arguments.values(), tokens.labels)}
    return device


WAYS = [of_images, of_pictures, of_text]


@pytest.mark.parametrize("way", WAYS)
def test_data_goes_where_it_is_to_be(
    way: Callable[[Path, str], torch.device], large: None, tmp_path: Path
) -> None:
    assert way(tmp_path, "auto") == way(tmp_path, "device") == FAKE
    assert way(tmp_path, "host") == CPU


@pytest.mark.parametrize("way", WAYS)
def test_data_stays_on_the_host_if_another_process_took_the_memory(
    way: Callable[[Path, str], torch.device], full: None, tmp_path: Path
) -> None:
    """Unless the user asked for the device."""
    assert way(tmp_path, "auto") == CPU
    with pytest.raises(torch.OutOfMemoryError):
        way(tmp_path, "device")


@pytest.mark.parametrize("place", ["device", "host"])
@pytest.mark.parametrize("name", ["none", "pad-crop-flip", "crop-flip", "crop-flip-colour"])
def test_images_are_augmented_on_the_device_alone(
    name: str, place: str, large: None, tmp_path: Path
) -> None:
    """The fake device computes with no tensor of the host's memory."""
    recipe = Augmentation(name, 24, 0.2)
    images = decoded(tmp_path, recipe)
    feed = ResidentFeed(
        images, recipe, device=FAKE, place=place, classes=2, batch=8, seed=3, views=2
    )
    for batch in feed.batches(1):
        parts = (batch.inputs, batch.second, batch.labels)
        assert [part.device for part in parts] == [FAKE] * 3
        assert batch.inputs.shape == batch.second.shape == (len(batch.labels), 3, 24, 24)


def test_samples_of_an_evaluation_leave_the_device_its_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """60 bytes are much of the memory if 599 are free."""
    batches = [torch.randint(0, 256, (8, 3), dtype=torch.uint8) for _ in range(3)]
    for free, home in ((600, FAKE), (599, CPU)):
        monkeypatch.setattr(machine, "_free_memory", lambda device, free=free: free)
        assert gather(batches, 20, FAKE).device == home
    for device in (FAKE, CPU):
        assert torch.equal(gather(batches, 20, device), torch.cat(batches)[:20])


def test_only_images_have_a_loader(large: None) -> None:
    assert move_if_it_fits(torch.zeros(3).to, 12, "loader", FAKE)[1] == "device"


def decoded(folder: Path, recipe: Augmentation) -> Decoded:
    """26 images, no two of one size."""
    rng, files = np.random.default_rng(0), []
    for number in range(26):
        files.append(str(folder / f"{number}.png"))
        pixels = rng.integers(0, 256, (20 + 3 * number, 70 - number, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(files[-1])
    samples = image_files(files, [number % 2 for number in range(26)], ["a", "b"])
    return decode_once(samples, recipe, folder / "cache")
