"""The GANs: training as in PyTorch's example, the method on the generator, what a run leaves."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from tiny_gans import (
    MNIST,
    bare,
    crashing_at,
    run,
    saved_models,
    steps_kept,
    task_of,
    tiny,
    trained,
)
from tiny_runs import read_metrics
from torch import Tensor, nn

from atomsep import AtomLoss, load_run
from atomsep.experiments.errors import ExperimentError
from atomsep.experiments.gan import pictures
from atomsep.experiments.gan.adversarial import Gan
from atomsep.experiments.gan.dcgan import Discriminator, Generator
from atomsep.experiments.gan.fidelity import Fidelity
from atomsep.experiments.gan.pictures import as_bytes, normalise
from atomsep.experiments.randomness import generator, seed_step
from atomsep.experiments.registry import find_experiment, run_key
from atomsep.experiments.task import Experiment, main_metric
from atomsep.methods import VQ

CIFAR10, OWN = map(find_experiment, ("cifar10-gan", "own-gan"))
GANS = (MNIST, CIFAR10, OWN)
STATISTICS = {
    *("energy", "neutrality", "occupancy", "distance", "radius"),
    *("protons", "neutrons", "electrons", "charge_square", "position_share"),
}
PAIRS = [(experiment, method) for experiment in GANS for method in MNIST.methods]


@pytest.mark.parametrize(
    ("experiment", "method"), PAIRS, ids=[f"{e.name}-{method}" for e, method in PAIRS]
)
def test_every_pair_trains(experiment: Any, method: str, tmp_path: Path) -> None:
    key = tiny(experiment, method)
    result = run(key, tmp_path)
    names = {"discriminator", "generator"} | ({"method"} if method != "plain" else set())
    first, last = read_metrics(key.folder(tmp_path))
    shares = {name for name in last if name.startswith("gradient_share")}
    atoms = method.startswith("atom")
    statistics = STATISTICS if atoms else set()
    assert names == set(last) - {"epoch", "step", "seconds", "metrics"} - shares - statistics
    assert statistics <= set(last)
    assert bool(shares) == (method not in ("plain", "mode-seeking"))  # which act on no layer
    assert all(math.isfinite(line[name]) for line in (first, last) for name in names)
    assert last["discriminator"] < first["discriminator"]
    own = {"frechet_classifier", "precision", "recall"}
    assert set(result["metrics"]) == own | {f"ema_{name}" for name in own}
    assert result["metrics"]["frechet_classifier"] > 0
    assert main_metric(experiment, result["metrics"]) == "frechet_classifier"
    assert result["settings"]["weight"] == experiment.weights.get(method, 0.0)
    assert result["files"] == ["samples.png", *(["importance.png", "atoms.npz"] if atoms else [])]
    side = 8 * (64 + 2) + 2
    with Image.open(key.folder(tmp_path) / "samples.png") as image:
        assert image.size == (side, side)
    if atoms:
        with Image.open(key.folder(tmp_path) / "importance.png") as image:
            assert image.width == 6.75 * 200
        if method == "atom":
            assert last["method"] < first["method"]


@pytest.mark.parametrize(("method", "weight"), [("vq", 50), ("sscl", 5)])
def test_a_baseline_that_weighs_enough_lowers_its_loss(
    method: str, weight: float, tmp_path: Path
) -> None:
    """At their own weights the two epochs of the tiny form drown theirs."""
    key = tiny(MNIST, method, 0, f"weight={weight}")
    run(key, tmp_path)
    first, last = read_metrics(key.folder(tmp_path))
    assert last["method"] < first["method"]


def by_the_example(task: Gan, steps: int, *, sigmoid: bool, criterion: Any = None) -> nn.Module:
    """The example's loop, written out. With a criterion, the atom loss is added by hand."""
    settings, dtype = task.settings, next(task.inner.parameters()).dtype
    seed_step(task.seed, "initial weights")
    netG = Generator(1, settings.width).to(dtype)
    netD = Discriminator(1, settings.width).to(dtype)
    hidden: list[Tensor] = []
    netG.main[10].register_forward_hook(lambda *call: hidden.append(call[2].clone()))
    bce = nn.BCELoss() if sigmoid else nn.BCEWithLogitsLoss()
    judge = nn.Sequential(netD, nn.Sigmoid()) if sigmoid else netD
    optimizerD = torch.optim.Adam(netD.parameters(), lr=0.0002, betas=(0.5, 0.999))
    optimizerG = torch.optim.Adam(netG.parameters(), lr=0.0002, betas=(0.5, 0.999))
    for step, batch in zip(range(steps), task.batches(0, 0), strict=False):
        seed_step(task.seed, "step", 0, step)
        real = ((batch.float() / 255 - 0.5) / 0.5).to(dtype)
        size = len(real)
        netD.zero_grad()
        bce(judge(real), torch.full((size,), 1, dtype=dtype)).backward()
        fake = netG(torch.randn(size, 100, 1, 1).to(dtype))
        bce(judge(fake.detach()), torch.full((size,), 0, dtype=dtype)).backward()
        optimizerD.step()
        netG.zero_grad()
        loss = bce(judge(fake), torch.full((size,), 1, dtype=dtype))
        if criterion is not None:
            loss = loss + criterion(hidden[-1].flatten(2).transpose(1, 2))
        loss.backward()
        optimizerG.step()
    return netG


def test_a_step_is_the_examples_to_the_last_bit() -> None:
    task = task_of(bare())
    expected = by_the_example(task, 3, sigmoid=False).state_dict()
    for name, value in trained(task, 3).state_dict().items():
        assert torch.equal(value, expected[name]), name


def test_the_sigmoid_may_be_part_of_the_loss() -> None:
    task = task_of(bare("plain", 1, "precision=64-true"))
    expected = by_the_example(task, 3, sigmoid=True).state_dict()
    for name, value in trained(task, 3).state_dict().items():
        torch.testing.assert_close(value, expected[name], rtol=0, atol=1e-7)  # a step is 2e-4


def test_the_method_is_added_to_the_generators_loss() -> None:
    task = task_of(bare("atom", 1, "precision=64-true", "weight=0.7"))
    loss = AtomLoss()
    expected = by_the_example(task, 3, sigmoid=False, criterion=lambda x: 0.7 * loss(x))
    plain = by_the_example(task, 3, sigmoid=False).state_dict()
    differs = False
    for name, value in trained(task, 3).state_dict().items():
        torch.testing.assert_close(value, expected.state_dict()[name], rtol=0, atol=1e-6)
        differs |= not torch.allclose(value, plain[name], rtol=0, atol=1e-5)
    assert differs


def test_vq_puts_codes_in_the_layers_place_and_learns_them() -> None:
    task = task_of(bare("vq"))
    method = task.on_layer.method
    assert isinstance(method, VQ)
    assert method.codes.shape == (32, 8)
    before = method.codes.detach().clone()
    seen: list[Tensor] = []
    task.inner.main[11].register_forward_pre_hook(lambda _, args: seen.append(args[0].clone()))
    trained(task, 2)
    assert not torch.equal(before, method.codes)
    assert any(
        method.codes is p for g in task.generator_optimiser.param_groups for p in g["params"]
    )
    task.sample(torch.randn(4, 100, 1, 1))
    tokens = seen[-1].flatten(2).transpose(1, 2).flatten(0, 1)
    assert (tokens.unsqueeze(1) == method.codes.detach()).all(2).any(1).all()


@pytest.mark.parametrize("method", ["atom", "vq"])
def test_a_crashed_run_continues_as_if_nothing_had_happened(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = tiny(MNIST, method, 0, "train_samples=128", "evaluate_every=3", "average_last=2")
    unbroken = run(key, tmp_path / "unbroken")
    with crashing_at(6, monkeypatch), pytest.raises(MemoryError):  # the third of the second epoch
        run(key, tmp_path / "broken", checkpoint_seconds=0)
    assert steps_kept(key, tmp_path / "broken", per_epoch=4) == 6
    again = run(key, tmp_path / "broken")
    assert again["metrics"] == unbroken["metrics"]
    models = [saved_models(key, tmp_path / name) for name in ("broken", "unbroken")]
    learned = {"method"} if method == "vq" else set()
    assert set(models[0]) == {"generator", "discriminator", "ema"} | learned
    for name, state in models[0].items():
        for entry, value in state.items():
            assert torch.equal(value, models[1][name][entry]), (name, entry)


def test_one_seed_repeats_and_two_differ() -> None:
    results = [
        trained(task_of(bare("sscl", seed)), 1).main[0].weight.detach() for seed in (0, 0, 1)
    ]
    assert torch.equal(results[0], results[1])
    assert not torch.equal(results[0], results[2])


def test_bf16_trains() -> None:
    task = task_of(bare("atom", 0, "precision=bf16-mixed"))
    [batch, *_] = task.batches(0, 0)
    parts = task.step(batch, 0.0)
    assert all(part.isfinite() and part.dtype == torch.float32 for part in parts.values())
    assert task.sample(torch.randn(4, 100, 1, 1)).dtype == torch.uint8


def test_metrics_are_of_as_many_samples_as_are_set(monkeypatch: pytest.MonkeyPatch) -> None:
    task = task_of(bare("plain", 0, "samples=50", "ema=0"))
    seen: list[Tensor] = []
    monkeypatch.setattr(task.judge, "compare", lambda images: seen.append(images) or {})
    task.evaluate()
    task.evaluate()
    assert seen[0].shape == (50, 1, 64, 64)
    assert torch.equal(seen[0], seen[1])  # the same noise every time
    # The statistics are those of a whole batch, though the last one was cut.
    noise = torch.randn(64, 100, 1, 1, generator=generator(0, "samples"))
    with torch.no_grad():
        whole = torch.cat([task.inner(part) for part in noise.split(32)])
    assert torch.equal(seen[0], as_bytes(whole)[:50])


def test_a_search_compares_with_images_that_were_not_trained_on() -> None:
    key = run_key(
        MNIST,
        "plain",
        0,
        ["train_samples=0", "features=torch.nn:Flatten"],
        tiny=True,
        validation=True,
    )
    task = task_of(key)
    assert isinstance(task.judge, Fidelity)
    images = task.training.batch(torch.arange(len(task.training)))
    assert (len(images), len(task.judge.real)) == (1618, 179)
    rows = {image.numpy().tobytes() for image in images}
    assert sum(image.numpy().tobytes() in rows for image in task.judge.real) < 5  # twins


def test_own_images(tmp_path: Path) -> None:
    for number, shade in enumerate(torch.linspace(0, 255, 12).tolist()):
        folder = tmp_path / "images" / ("dark" if shade < 128 else "light")
        folder.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (70 + number, 90), (int(shade), 0, 255)).save(folder / f"{number}.png")
    settings = [f"folder={tmp_path / 'images'}", "epochs=1", "batch=4", "samples=4"]
    key = run_key(OWN, "atom", 0, settings, tiny=True)
    result = run(key, tmp_path / "runs", data=tmp_path / "data")
    assert result["metrics"]["frechet_classifier"] > 0
    assert list((tmp_path / "data" / "cache").glob("pictures-*/images.npy"))
    assert load_run(key.folder(tmp_path / "runs")).sample(2).images.shape == (2, 3, 64, 64)
    for settings, message in (
        (["folder=", "width=4"], "name the folder of the images with --set folder=PATH"),
        (["channels=2"], "no choice '2' for channels"),
        ([f"folder={tmp_path / 'none'}"], "there is no folder"),
    ):
        with pytest.raises(ExperimentError, match=message):
            task_of(run_key(OWN, "plain", 0, [*settings, "features=classifier"]))


def test_bytes_and_back() -> None:
    levels = torch.arange(256, dtype=torch.uint8)
    assert torch.equal(as_bytes(normalise(levels)), levels)


def test_missing_data_is_one_sentence(tmp_path: Path) -> None:
    for experiment, name in ((MNIST, "MNIST"), (CIFAR10, "CIFAR10")):
        key = run_key(experiment, "plain", 0)
        with pytest.raises(ExperimentError, match=f"{name} is not in .*--download"):
            run(key, tmp_path, data=tmp_path)


@pytest.mark.parametrize("experiment", [OWN, find_experiment("faces-gan")])
def test_missing_features_are_said_before_a_folder_is_decoded(
    experiment: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(pictures, "folder")
    settings = [f"folder={tmp_path}", f"features_weights={tmp_path / 'none'}", "width=64"]
    with pytest.raises(ExperimentError, match="there is no file .*none"):
        task_of(run_key(experiment, "plain", 0, settings))


def test_a_method_on_no_layer_needs_none() -> None:
    """Mode seeking compares images; other methods look for the layer that is set."""
    few = ("layer=none", "train_samples=64", "samples=8")
    assert task_of(bare("mode-seeking", 0, *few)).on_layer.binding is not None
    with pytest.raises(ExperimentError, match="'none'"):
        task_of(bare("koleo", 0, *few))
