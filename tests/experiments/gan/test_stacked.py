"""Stacked digits: what is trained on, and how modes are counted."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_gans import run, saved_models, task_of, tiny
from tiny_runs import read_metrics
from torch import Tensor

from atomsep.experiments.errors import ExperimentError
from atomsep.experiments.gan.build import find_digits
from atomsep.experiments.gan.classifier import Classifier
from atomsep.experiments.gan.pictures import Pictures, digits
from atomsep.experiments.gan.stacked import Modes, Stacks, reverse_kl, stack
from atomsep.experiments.machine import Machine, make_fabric
from atomsep.experiments.registry import find_experiment
from atomsep.experiments.task import Context, main_metric

STACKED = find_experiment("stacked-mnist-gan")
CPU = torch.device("cpu")


class ByBrightness(Classifier):
    """Reads an image of one shade as its tens: 37 is the digit 3."""

    def __init__(self) -> None:
        super().__init__(10)

    def forward(self, images: Tensor) -> Tensor:
        assert images.shape[1] == 3
        tens = images[:, 0, 0, 0].long() // 10
        return torch.nn.functional.one_hot(tens, 10).float()


def by_brightness() -> ByBrightness:
    reader = ByBrightness()
    reader.head = torch.nn.Identity()  # type: ignore[assignment]
    return reader


def shades(values: Tensor) -> Tensor:
    return values.to(torch.uint8)[..., None, None].expand(*values.shape, 4, 4)


TEN = Pictures(shades(torch.arange(10).unsqueeze(1) * 10), torch.arange(10))


def test_three_digits_are_the_colours() -> None:
    images = torch.arange(20, dtype=torch.uint8).view(20, 1, 1, 1).expand(20, 1, 64, 64)
    stacks = stack(images, 50).to(CPU)
    assert len(stacks) == 50
    batch = stacks.batch(torch.tensor([7, 3]))
    assert batch.shape == (2, 3, 64, 64)
    for row, index in enumerate((7, 3)):
        for colour in range(3):
            expected = images[stacks.members[index, colour], 0]
            assert torch.equal(batch[row, colour], expected)


def test_the_stacks_are_the_same_in_every_run_and_cover_all_modes() -> None:
    images = torch.zeros(1000, 1, 64, 64, dtype=torch.uint8)
    first, again = (stack(images, 20_000).members for _ in range(2))
    assert torch.equal(first, again)
    labels = torch.arange(1000) % 10
    assert len({tuple(row) for row in labels[first].tolist()}) == 1000


def test_modes_and_divergence_are_those_of_a_plain_count() -> None:
    rng = torch.Generator().manual_seed(0)
    values = torch.randint(0, 100, (3000, 3), generator=rng)
    values[:1000] = torch.tensor([42, 7, 99])  # a frequent mode
    found = Modes(by_brightness(), TEN, CPU).compare(shades(values))
    counts = Counter(tuple(v // 10 for v in row) for row in values.tolist())
    assert found["modes"] == len(counts)
    shares = [count / 3000 for count in counts.values()]
    expected = sum(share * math.log(share * 1000) for share in shares)
    assert found["reverse_kl"] == pytest.approx(expected, rel=1e-9)
    assert found["digit_accuracy"] == 1


def test_the_ends_of_the_scale() -> None:
    assert reverse_kl(torch.full((1000,), 26)) == pytest.approx(0, abs=1e-9)
    one = torch.zeros(1000, dtype=torch.int64)
    one[5] = 7
    assert reverse_kl(one) == pytest.approx(math.log(1000))


def test_which_colour_is_which_digit_matters() -> None:
    permuted = torch.tensor([[10, 20, 30], [30, 20, 10], [20, 10, 30], [10, 20, 30]])
    assert Modes(by_brightness(), TEN, CPU).compare(shades(permuted))["modes"] == 3


def test_a_classifier_that_cannot_read_is_refused() -> None:
    wrong = Pictures(TEN.images, torch.arange(10).flip(0))
    with pytest.raises(ExperimentError, match="reads only 0.00% of held-out digits"):
        Modes(by_brightness(), wrong, CPU)
    assert Modes(by_brightness(), wrong, CPU, sure=False).accuracy == 0


def test_the_tiny_form(tmp_path: Path) -> None:
    key = tiny(STACKED, "atom", 0, "discriminator_width=2")
    result = run(key, tmp_path)
    own = {"modes", "reverse_kl", "digit_accuracy"}
    assert set(result["metrics"]) == own | {f"ema_{name}" for name in own}
    assert main_metric(STACKED, result["metrics"]) == "modes"
    assert 1 <= result["metrics"]["modes"] <= key.settings.samples
    assert [line["step"] for line in read_metrics(key.folder(tmp_path))] == [8, 16]
    models = saved_models(key, tmp_path)
    assert models["discriminator"]["main.0.weight"].shape == (2, 3, 4, 4)
    assert models["generator"]["main.12.weight"].shape == (8, 3, 4, 4)


def test_real_stacks_have_the_modes_of_their_labels() -> None:
    """Digits that the classifier has not seen, stacked, are read correctly."""
    task = task_of(tiny(STACKED))
    assert isinstance(task.judge, Modes)
    assert isinstance(task.training, Stacks)
    assert task.judge.accuracy > 0.9
    fabric = make_fabric(Machine(device="cpu"), "32-true")
    context = Context(task.settings, "plain", 0, fabric, Path("nowhere"), tiny=True)
    training, held_out = find_digits(context)
    assert (len(training), len(held_out)) == (1618, 179)
    assert len(training) == len(task.training.digits)
    members = torch.randint(len(held_out), (200, 3), generator=torch.Generator().manual_seed(0))
    assert held_out.labels is not None
    images = Stacks(held_out.images, members).batch(torch.arange(200))
    read = task.judge.read(images.flatten(0, 1).unsqueeze(1)).view(-1, 3)
    assert (read == held_out.labels[members]).all(1).float().mean() > 0.8


def test_held_out_digits_are_mnists_test_images(tmp_path: Path) -> None:
    """Or, where a copy has none, a tenth of the training images."""
    pixels = np.round(digits(1).images[:, 0, ::8, ::8].numpy()).astype(np.uint8)
    labels = digits(1).labels
    assert labels is not None
    root = tmp_path / "mnist"
    root.mkdir()
    np.savez(root / "train.npz", images=pixels[:100], labels=labels[:100].numpy())
    fabric = make_fabric(Machine(device="cpu"), "32-true")
    context = Context(STACKED.settings, "plain", 0, fabric, tmp_path)
    assert [len(part) for part in find_digits(context)] == [90, 10]
    np.savez(root / "test.npz", images=pixels[100:130], labels=labels[100:130].numpy())
    searching = replace(context, validation=True)
    assert [len(part) for part in find_digits(searching)] == [90, 10], "never the test images"
    training, held_out = find_digits(context)
    assert [len(training), len(held_out)] == [100, 30]
    assert held_out.labels is not None
    assert torch.equal(held_out.labels, labels[100:130])
