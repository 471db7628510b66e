"""Corruptions against Pillow, SciPy, torchvision and the published formulas; robust accuracy."""

from __future__ import annotations

import io
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.ndimage import gaussian_filter
from scipy.stats import kstest
from test_images import make_context
from tiny_runs import run
from torch import Tensor
from torchvision.transforms.v2.functional import gaussian_blur

from atomsep.experiments.errors import ExperimentError
from atomsep.experiments.images import corruptions as module
from atomsep.experiments.images.build import DEVIATION, MEAN
from atomsep.experiments.images.corruptions import (
    CIFAR_10_C,
    IMAGENET_C,
    corrupt,
    corrupted,
    corruptions,
    normal_numbers,
)
from atomsep.experiments.images.experiments import PETS
from atomsep.experiments.images.jpeg import CHROMINANCE, LUMINANCE, compress, quantisation
from atomsep.experiments.loading import Shard

SEVERITIES = range(1, 6)


def make_images(count: int, height: int, width: int, seed: int = 0) -> Tensor:
    """Bytes: half of the images noise, half of them smooth, with all levels up to both ends."""
    rng = np.random.default_rng(seed)
    images = rng.integers(0, 256, (count, 3, height, width)).astype(np.uint8)
    smooth = 128 + 400 * gaussian_filter(rng.normal(size=images.shape), (0, 0, 3, 3))
    images[::2] = smooth.clip(0, 255)[::2]
    return torch.from_numpy(images)


def through_pillow(images: Tensor, quality: int) -> Tensor:
    decoded = []
    for image in images:
        stream = io.BytesIO()
        Image.fromarray(image.permute(1, 2, 0).numpy()).save(stream, "JPEG", quality=quality)
        decoded.append(torch.from_numpy(np.array(Image.open(stream))).permute(2, 0, 1))
    return torch.stack(decoded)


def apart(one: Tensor, other: Tensor) -> Tensor:
    return (one.double() - other.double()).abs()


# JPEG


@pytest.mark.parametrize("size", [(32, 32), (96, 96), (48, 64), (30, 46), (33, 17), (8, 8), (1, 1)])
@pytest.mark.parametrize("quality", [7, 10, 25, 50, 80, 100])
def test_jpeg_is_pillows(size: tuple[int, int], quality: int) -> None:
    """Equal where Pillow has libjpeg's default transform; another build may round differently."""
    images = make_images(4, *size)
    difference = apart(compress(images, quality), through_pillow(images, quality))
    assert difference.max() <= 2
    assert difference.mean() < 0.01


@pytest.mark.parametrize("quality", [1, 7, 49, 50, 80, 100])
def test_quantisation_is_pillows(quality: int) -> None:
    stream = io.BytesIO()
    Image.new("RGB", (8, 8)).save(stream, "JPEG", quality=quality)
    tables = Image.open(stream).quantization
    assert list(tables[0]) == quantisation(LUMINANCE, quality)
    assert list(tables[1]) == quantisation(CHROMINANCE, quality)


def test_jpeg_loses_more_with_less_quality() -> None:
    images = make_images(2, 32, 32)
    losses = [apart(compress(images, quality), images).mean() for quality in (90, 50, 20, 5)]
    assert losses == sorted(losses)
    assert losses[0] < losses[-1]


@pytest.mark.parametrize("quality", [0, 101])
def test_a_quality_is_refused(quality: int) -> None:
    with pytest.raises(ValueError, match=f"quality must be between 1 and 100, not {quality}"):
        compress(make_images(1, 8, 8), quality)


# Blur, contrast and noise


@pytest.mark.parametrize("size", [(32, 40), (80, 96)])
@pytest.mark.parametrize("severity", SEVERITIES)
def test_blur_is_scipys(size: tuple[int, int], severity: int) -> None:
    """scikit-image, which the benchmark was made with, calls SciPy with these arguments."""
    images = make_images(2, *size)
    published = (CIFAR_10_C if size[0] <= 64 else IMAGENET_C)["blur"][severity - 1]
    sigma = (0, 0, published, published)
    exact = gaussian_filter(images.double().numpy(), sigma, mode="nearest", truncate=4)
    blurred = corrupt(images, torch.arange(2), "blur", severity)
    assert apart(blurred, torch.from_numpy(exact)).max() <= 0.5 + 1e-6


def test_blur_is_torchvisions_away_from_the_edges() -> None:
    images = make_images(2, 80, 80)
    other = gaussian_blur(images.double(), [25, 25], [3.0, 3.0])  # it reflects at the edges
    blurred = corrupt(images, torch.arange(2), "blur", 3)
    assert apart(blurred, other)[..., 12:-12, 12:-12].max() <= 0.5 + 1e-4


@pytest.mark.parametrize("size", [32, 80])
@pytest.mark.parametrize("severity", SEVERITIES)
def test_contrast_is_the_published_formula(size: int, severity: int) -> None:
    images = make_images(2, size, size)
    factor = (CIFAR_10_C if size <= 64 else IMAGENET_C)["contrast"][severity - 1]
    changed = corrupt(images, torch.arange(2), "contrast", severity)
    for image, got in zip(images, changed, strict=True):
        x = image.permute(1, 2, 0).numpy() / 255
        means = x.mean(axis=(0, 1), keepdims=True)
        expected = np.clip((x - means) * factor + means, 0, 1) * 255
        assert apart(got, torch.from_numpy(expected).permute(2, 0, 1)).max() <= 0.5 + 1e-9


@pytest.mark.parametrize("size", [32, 80])
@pytest.mark.parametrize("severity", SEVERITIES)
def test_noise_has_the_published_deviation(size: int, severity: int) -> None:
    images = torch.full((2, 3, size, size), 128, dtype=torch.uint8)
    noise = corrupt(images, torch.arange(2), "noise", severity).double() / 255 - 128 / 255
    deviation = (CIFAR_10_C if size <= 64 else IMAGENET_C)["noise"][severity - 1]
    inside = math.erf(0.5 / deviation / math.sqrt(2))  # not clipped to 0 or 1
    if inside > 0.9999:
        assert noise.std().item() == pytest.approx(deviation, rel=0.03)
    assert noise.median().abs() < 0.02
    ends = (noise.abs() > 0.49).double().mean().item()
    assert ends == pytest.approx(1 - math.erf(0.49 / deviation / math.sqrt(2)), abs=0.02)


def hashed(key: int, stream: int, place: int) -> float:
    """A normal number in whole Python numbers."""

    def mix(number: int) -> int:
        number = (number + 0x9E3779B97F4A7C15) % 2**64
        number = (number ^ (number >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        number = (number ^ (number >> 27)) * 0x94D049BB133111EB % 2**64
        return number ^ (number >> 31)

    bits = mix(mix(mix(key) + stream) + place * 0x9E3779B97F4A7C15)
    first, second = ((half % 2**32 + 0.5) / 2**32 for half in (bits >> 32, bits))
    return math.sqrt(-2 * math.log(first)) * math.cos(2 * math.pi * second)


def test_normal_numbers_are_those_of_the_plain_hash() -> None:
    keys = torch.tensor([0, 1, 7, 2**40])
    numbers = normal_numbers(keys, 3, (2, 5))
    for key, some in zip(keys.tolist(), numbers.flatten(1).tolist(), strict=True):
        assert some == pytest.approx([hashed(key, 3, place) for place in range(10)])


def test_normal_numbers_are_normal_and_independent() -> None:
    numbers = normal_numbers(torch.arange(40), 1, (1000,))
    assert kstest(numbers.flatten().numpy(), "norm").pvalue > 0.01
    assert kstest(numbers.mean(1).numpy() * math.sqrt(1000), "norm").pvalue > 0.01
    assert kstest(numbers.mean(0).numpy() * math.sqrt(40), "norm").pvalue > 0.01
    others = normal_numbers(torch.arange(40), 2, (1000,))
    both = torch.cat([numbers, others])
    first, second = torch.triu_indices(80, 80, 1)
    between = torch.corrcoef(both)[first, second]
    assert kstest(between.numpy() * math.sqrt(1000), "norm").pvalue > 0.01


# All of them


@pytest.mark.parametrize("kind", IMAGENET_C)
def test_an_image_is_corrupted_alike_in_every_batch(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    images, indices = make_images(5, 16, 16), torch.tensor([3, 0, 9, 4, 6])
    whole = corrupt(images, indices, kind, 3)
    order = torch.tensor([4, 1, 0, 3, 2])
    assert torch.equal(corrupt(images[order], indices[order], kind, 3), whole[order])
    monkeypatch.setattr(module, "PART", 2 * 3 * 16 * 16)
    assert torch.equal(corrupt(images, indices, kind, 3), whole)
    assert whole.dtype == torch.uint8
    differs = not torch.equal(corrupt(images, indices + 1, kind, 3), whole)
    assert differs == (kind == "noise")


@pytest.mark.parametrize("kind", IMAGENET_C)
@pytest.mark.parametrize("size", [32, 80])
def test_every_severity_is_worse_than_the_one_before(kind: str, size: int) -> None:
    images = make_images(2, size, size)[:1]  # smooth
    losses = [apart(corrupt(images, torch.arange(1), kind, s), images).mean() for s in SEVERITIES]
    assert losses == sorted(losses)
    assert losses[0] > 0


@pytest.mark.parametrize("kind", IMAGENET_C)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_normalised_images_are_corrupted_as_their_bytes(kind: str, dtype: torch.dtype) -> None:
    images, indices = make_images(3, 24, 24), torch.tensor([5, 6, 7])
    shift, scale = (torch.tensor(numbers).view(3, 1, 1) for numbers in (MEAN, DEVIATION))

    def normalise(images: Tensor) -> Tensor:
        return ((images / 255 - shift) / scale).to(dtype)

    for severity, change in enumerate(corruptions(MEAN, DEVIATION)[kind], 1):
        expected = normalise(corrupt(images, indices, kind, severity))
        torch.testing.assert_close(change(normalise(images), indices), expected)
    got = corrupted(normalise(images), indices, kind, 5, MEAN, DEVIATION)
    assert torch.equal(got, change(normalise(images), indices))


@pytest.mark.parametrize(("kind", "severity"), [("fog", 1), ("noise", 0), ("blur", 6)])
def test_others_are_refused(kind: str, severity: int) -> None:
    with pytest.raises(ValueError, match=f"no corruption '{kind}' of severity {severity}; the ki"):
        corrupt(make_images(1, 8, 8), torch.arange(1), kind, severity)


# As metrics of a classifier


def test_robust_accuracy_is_evaluated_once_at_the_end(tmp_path: Path) -> None:
    result, _ = run(PETS, "plain", tmp_path, "robustness=true", "epochs=1")
    plain, _ = run(PETS, "plain", tmp_path, "epochs=1")
    robust = {name: value for name, value in result["metrics"].items() if "robust" in name}
    assert set(robust) == {"robust", *(f"robust_{kind}" for kind in IMAGENET_C)}
    assert all(0 <= value <= 1 for value in robust.values())
    kinds = [robust[f"robust_{kind}"] for kind in IMAGENET_C]
    assert robust["robust"] == pytest.approx(sum(kinds) / 4)
    assert {**plain["metrics"], **robust} == result["metrics"]
    assert "robust" not in result["last_epoch"]["metrics"]


@pytest.mark.parametrize("shard", [Shard(0, 1), Shard(1, 3)])
def test_a_corruption_gets_the_place_of_each_image(shard: Shard) -> None:
    task = PETS.build(make_context(robustness=True, batch=24))
    seen: list[int] = []

    def unchanged(inputs: Tensor, indices: Tensor) -> Tensor:
        assert len(inputs) == len(indices)
        seen.extend(indices.tolist())
        return inputs

    task.corruptions, task.shard = {"nothing": [unchanged]}, shard
    assert task.evaluate_once()["robust_nothing"] == task.evaluate()["top1"]
    assert seen == list(range(shard.rank, 64 * shard.world, shard.world))


def test_robust_accuracy_is_that_of_the_corrupted_images() -> None:
    """By hand: every held-out image by itself, with its number in the data set."""
    task = PETS.build(make_context(robustness=True, batch=24))
    for batch in task.batches(0, 0):
        task.step(batch, 0.0)
    found = task.evaluate_once()
    inputs, labels = (
        torch.cat(parts)
        for parts in zip(*((b.inputs, b.labels) for b in task.held_out()), strict=True)
    )
    for kind, changes in corruptions(MEAN, DEVIATION).items():
        right = []
        for change in changes:
            for index in range(len(labels)):
                image = change(inputs[index : index + 1], torch.tensor([index]))
                with torch.no_grad():
                    right.append(int(task.inner(image).argmax()) == int(labels[index]))
        assert found[f"robust_{kind}"] == pytest.approx(sum(right) / len(right), abs=0.01), kind


def test_a_search_does_not_evaluate_it() -> None:
    task = PETS.build(replace(make_context(robustness=True), validation=True))
    assert task.evaluate_once() == {}


def test_robustness_is_a_yes_or_no(tmp_path: Path) -> None:
    with pytest.raises(ExperimentError, match="robustness must be true or false, not 'maybe'"):
        run(PETS, "plain", tmp_path, "robustness=maybe")
