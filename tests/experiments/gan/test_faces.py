"""StyleSwin in training: its step by hand, lazy R1, rates, images, sizes."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import naive_styleswin as naive
import pytest
import torch
from PIL import Image
from tiny_gans import Means
from torch import Tensor, nn
from torch.nn.functional import mse_loss, softplus

from atomsep import AtomLoss
from atomsep.experiments.errors import ExperimentError
from atomsep.experiments.gan import pictures
from atomsep.experiments.gan.experiments import FacesSettings
from atomsep.experiments.gan.features import Features
from atomsep.experiments.gan.fidelity import Fidelity
from atomsep.experiments.gan.styleswin.build import find_images, make_networks
from atomsep.experiments.gan.styleswin.faces import Faces
from atomsep.experiments.gan.styleswin.generator import Generator
from atomsep.experiments.machine import Machine, make_fabric
from atomsep.experiments.randomness import seed_step
from atomsep.experiments.registry import find_experiment, run_key
from atomsep.experiments.task import Context
from atomsep.report.paper import result as papers_result

FACES = find_experiment("faces-gan")
SMALL = FacesSettings(
    epochs=1, batch=4, size=16, width=8, z=8, weight=0.7, r1_every=2, learning_rate=1e-3, samples=4
)
"""Of 16 px, which the command line does not offer: a step takes a moment."""


def small(method: str = "plain", **changes: Any) -> Faces:
    settings = replace(SMALL, **changes)
    fabric = make_fabric(Machine(device="cpu"), settings.precision)
    seed_step(0, "initial weights")
    networks = make_networks(settings)
    images = pictures.digits(3, settings.size).take(torch.arange(24))
    judge = Fidelity(Features("means", Means()), images.images)
    return Faces(Context(settings, method, 0, fabric, Path()), *networks, images, judge)


def trained(task: Faces, steps: int) -> list[dict[str, Tensor]]:
    """The parts of the loss of the first steps."""
    parts = []
    for step, batch in zip(range(steps), task.batches(0, 0), strict=False):
        seed_step(0, "step", 0, step)
        parts.append({**task.step(batch, step / (task.settings.epochs * task.steps))})
    return parts


def by_hand(task: Faces, steps: int, criterion: AtomLoss | None) -> tuple[Any, Any, Any]:
    """The published training, written out: both networks, and the generator's average.

    The published rates fall from their full values, and R1 has its own update after the first.
    """
    settings = task.settings
    seed_step(0, "initial weights")
    generator, discriminator = (network.double() for network in make_networks(settings))
    average = deepcopy(generator)
    hidden: list[Tensor] = []
    generator.layers[-2].blocks[1].register_forward_hook(lambda *call: hidden.append(call[2]))
    for_generator = torch.optim.Adam(generator.parameters(), lr=1e-3, betas=(0.0, 0.99))
    for_discriminator = torch.optim.Adam(
        discriminator.parameters(), lr=4 * 1e-3 * 2 / 3, betas=(0.0, 0.99 ** (2 / 3))
    )
    for step, batch in zip(range(steps), task.batches(0, 0), strict=False):
        seed_step(0, "step", 0, step)
        real = ((batch.float() / 255 - 0.5) / 0.5).double()
        if step > 1:  # of six, from a sixth of them on
            rate = 1e-3 * (6 - step) / 5
            for_generator.param_groups[0]["lr"] = rate
            for_discriminator.param_groups[0]["lr"] = 4 * rate
        fake = generator(torch.randn(len(real), 8, 1, 1))
        loss: Any = 0
        for images, sign in ((real, -1), (fake.detach(), 1)):
            logits = discriminator(images)
            loss += softplus(sign * logits).mean()
            loss += 10 * mse_loss(discriminator.judge(naive.changed((images + 1) / 2)), logits)
        for_discriminator.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(discriminator.parameters(), 5.0)
        for_discriminator.step()
        if step % 2 == 0:
            seen = discriminator.colours.enter(real).requires_grad_()
            logits = discriminator.judge(seen)
            [slope] = torch.autograd.grad(logits.sum(), seen, create_graph=True)
            for_discriminator.zero_grad()
            (5 / 2 * 2 * slope.square().sum((1, 2, 3)).mean() + 0 * logits.sum()).backward()
            for_discriminator.step()
        for_generator.zero_grad()
        loss = softplus(-discriminator(fake)).mean()
        if criterion is not None:
            loss = loss + 0.7 * criterion(hidden[-1].flatten(1, 2))
        loss.backward()
        for_generator.step()
        rate = 1 - min(settings.ema, (1 + step) / (10 + step))
        with torch.no_grad():
            for held, weight in zip(average.parameters(), generator.parameters(), strict=True):
                held.add_(rate * (weight - held))
    return generator, discriminator, average


@pytest.fixture
def in_float64() -> Iterator[None]:
    """Everything, also what Fabric hands on: at first Adam sees little but the gradients' signs."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.usefixtures("in_float64")
@pytest.mark.parametrize("method", ["plain", "atom"])
def test_steps_are_those_written_by_hand(method: str) -> None:
    task = small(method, precision="64-true", decay_from=1 / 6)
    trained(task, 3)
    expected = by_hand(task, 3, AtomLoss() if method == "atom" else None)
    other = by_hand(task, 3, None if method == "atom" else AtomLoss())
    assert task.average is not None
    found = (task.inner, task.critic, task.average.weights)
    for ours, theirs in zip(found, expected, strict=True):
        for (name, value), wanted in zip(ours.named_parameters(), theirs.parameters(), strict=True):
            torch.testing.assert_close(value, wanted, rtol=0, atol=1e-7, msg=name)  # a step is 1e-3
    pairs = zip(task.inner.parameters(), other[0].parameters(), strict=True)
    assert any((ours - theirs).abs().max() > 1e-4 for ours, theirs in pairs)


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_every_weight_has_a_finite_gradient(precision: str) -> None:
    task = small("atom", precision=precision)
    for parts in trained(task, 3):
        assert all(part.isfinite() for part in parts.values())
        for network in (task.inner, task.critic):
            for name, weight in network.named_parameters():
                assert weight.grad is not None, name
                assert weight.grad.isfinite().all(), name
                assert weight.isfinite().all(), name
    assert all((weight.grad != 0).any() for weight in task.inner.parameters())


def test_the_penalty_has_its_turn() -> None:
    parts = trained(small(), 5)
    assert ["r1" in each for each in parts] == [True, False, True, False, True]
    assert all("r1" not in each for each in trained(small(r1=0.0), 2))
    assert all("consistency" not in each for each in trained(small(consistency=0.0), 1))


def test_a_lazy_penalty_weighs_as_much_as_one_in_every_step() -> None:
    """On the average of its turns; and it is the norm of the gradient that `with_gradient` has."""
    still = {"learning_rate": 0.0}  # it is measured after the update by the loss
    often, seldom = (trained(small(r1_every=every, **still), 1)[0]["r1"] for every in (1, 6))
    assert float(seldom / often) == pytest.approx(6, rel=1e-6)


def test_methods_share_their_seeds() -> None:
    """The first losses of the discriminator are the same: it does not know the method."""
    plain, atom = (trained(small(method), 1)[0] for method in ("plain", "atom"))
    for name in ("r1", "discriminator", "consistency", "generator"):
        assert plain[name] == atom[name]
    assert "method" in atom


def test_rates_stay_then_fall_to_zero() -> None:
    task = small(decay_from=0.5, rate_factor=3.0, r1=0.0)
    [batch, *_] = task.batches(0, 0)
    for progress, share in ((0.0, 1.0), (0.5, 1.0), (0.75, 0.5), (0.99, 0.02)):
        task.step(batch, progress)
        rates = [
            optimiser.param_groups[0]["lr"]
            for optimiser in (task.generator_optimiser, task.discriminator_optimiser)
        ]
        assert rates == pytest.approx([1e-3 * share, 3e-3 * share])


def test_rates_fall_without_the_share_of_r1() -> None:
    """Both networks' second betas and the rates of the constant part allow for R1's updates."""
    task = small(decay_from=0.5, r1_every=16)
    optimisers = (task.generator_optimiser, task.discriminator_optimiser)
    betas = [optimiser.param_groups[0]["betas"] for optimiser in optimisers]
    assert betas == [(0.0, 0.99), (0.0, pytest.approx(0.99059, abs=1e-5))]
    [batch, *_] = task.batches(0, 0)
    for progress, rates in ((0.5, (1e-3, 4e-3 * 16 / 17)), (0.75, (5e-4, 2e-3))):
        task.step(batch, progress)
        found = [optimiser.param_groups[0]["lr"] for optimiser in optimisers]
        assert found == pytest.approx(rates)


def test_the_average_is_that_of_the_authors() -> None:
    """After 10,000 images, half of it is left."""
    default = FacesSettings()
    assert default.ema ** (10_000 / default.batch) == pytest.approx(0.5)
    assert default.ema == pytest.approx(0.997784, abs=1e-6)


def test_images_come_from_the_folder_that_is_set(tmp_path: Path) -> None:
    for number in range(6):
        Image.new("RGB", (140, 150 + number), (40 * number, 0, 0)).save(tmp_path / f"{number}.png")
    key = run_key(FACES, "plain", 0, ["size=128", f"folder={tmp_path}"])
    fabric = make_fabric(Machine(device="cpu"), "32-true")
    found = find_images(Context(key.settings, "plain", 0, fabric, tmp_path / "data"))
    assert found.images.shape == (6, 3, 128, 128)
    assert found.images[:, 0].flatten(1).amax(1).tolist() == [40 * n for n in range(6)]
    default = run_key(FACES, "plain", 0)
    with pytest.raises(ExperimentError, match=r"celeba-hq; name the folder .* --set folder=PATH"):
        find_images(Context(default.settings, "plain", 0, fabric, tmp_path))


def test_a_checkpoint_of_a_narrow_network_is_small() -> None:
    """Both networks, the average, and two numbers of Adam per weight: below 50 MB."""
    key = run_key(FACES, "plain", 0, ["size=64", "width=128", "multiplier=1", "z=64"])
    with torch.device("meta"):
        counts = [sum(p.numel() for p in each.parameters()) for each in make_networks(key.settings)]
    assert 4 * (4 * counts[0] + 3 * counts[1]) < 50e6


def test_the_layer_has_half_the_resolution() -> None:
    """At full size; what comes after the layer is left out."""

    class Reached(Exception):
        pass

    def stop(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        raise Reached(tuple(output.shape))

    default = FacesSettings()
    generator = Generator(default.size, default.width, default.multiplier, default.z)
    generator.get_submodule(default.layer).register_forward_hook(stop)
    with torch.no_grad(), pytest.raises(Reached, match=r"\(1, 128, 128, 256\)"):
        generator(torch.randn(1, default.z, 1, 1))


def test_the_papers_figures_are_those_of_256_px() -> None:
    default = {"size": 256, "folder": ""}
    assert papers_result("faces-gan", "ema_fid", "plain", default) == 5.26
    assert papers_result("faces-gan", "ema_fid", "atom", default) == 5.18
    assert papers_result("faces-gan", "ema_fid", "atom", {**default, "size": 64}) is None
    assert papers_result("faces-gan", "ema_fid", "atom", {**default, "folder": "cats"}) is None
    assert papers_result("faces-gan", "fid", "atom", default) is None, "not of the average"
    assert papers_result("faces-gan", "frechet_classifier", "atom", default) is None
