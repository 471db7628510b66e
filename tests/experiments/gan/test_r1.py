"""The penalty of the discriminator's gradient."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path

import pytest
import torch
from tiny_gans import bare, run, task_of
from tiny_runs import read_metrics
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits as cross_entropy

from atomsep.experiments.gan.adversarial import Gan
from atomsep.experiments.gan.dcgan import Discriminator, Generator
from atomsep.experiments.gan.pictures import normalise
from atomsep.experiments.machine import Machine, make_fabric
from atomsep.experiments.randomness import seed_step
from atomsep.experiments.task import Context

GAMMA = 3.0


class Small(Discriminator):
    """D(x) = v tanh(W x) + b, whose gradient fits on a line."""

    def __init__(self) -> None:
        nn.Module.__init__(self)
        self.main = nn.Sequential(nn.Flatten(), nn.Linear(4096, 3), nn.Tanh(), nn.Linear(3, 1))

    def gradient_by_hand(self, images: Tensor) -> Tensor:
        """(v (1 - tanh²)) W, `(M, 4096)`."""
        first, last = self.main[1], self.main[3]
        slope = 1 - torch.tanh(first(images.flatten(1))).square()
        return (last.weight * slope) @ first.weight


def with_small_discriminator(gamma: float) -> tuple[Gan, Small]:
    key = bare("plain", 0, f"r1={gamma}", "precision=64-true", "batch=8")
    whole = task_of(key)
    seed_step(0, "small")
    generator, small = Generator(1, key.settings.width), Small()
    context = Context(
        *(key.settings, "plain", 0, make_fabric(Machine(device="cpu"), "64-true"), Path("nowhere")),
        tiny=True,
    )
    return Gan(context, generator, small, whole.training, whole.judge), small


def test_a_step_of_the_discriminator_by_hand() -> None:
    """The same weights after two steps, with the penalty from the gradient's own formula."""
    task, small = with_small_discriminator(GAMMA)
    seed_step(0, "small")
    generator, expected = Generator(1, task.settings.width).double(), Small().double()
    optimisers = [
        torch.optim.Adam(model.parameters(), lr=2e-4, betas=(0.5, 0.999))
        for model in (generator, expected)
    ]
    for step, batch in zip(range(2), task.batches(0, 0), strict=False):
        seed_step(0, "step", 0, step)
        parts = task.compute(batch)
        seed_step(0, "step", 0, step)
        real = normalise(batch).double()
        fake = generator(torch.randn(len(real), 100, 1, 1).double()).float().double()  # as Fabric
        judged = expected(real), expected(fake.detach())
        labels = [torch.ones_like(judged[0]), torch.zeros_like(judged[1])]
        losses = [cross_entropy(*pair) for pair in zip(judged, labels, strict=True)]
        penalty = GAMMA / 2 * expected.gradient_by_hand(real).square().sum(1).mean()
        assert float(parts["r1"]) == pytest.approx(penalty.item(), rel=1e-9)
        assert float(parts["discriminator"]) == pytest.approx(sum(losses).item(), rel=1e-6)
        optimisers[1].zero_grad()
        (losses[0] + losses[1] + penalty).backward()
        optimisers[1].step()
        optimisers[0].zero_grad()
        logits = expected(fake)
        cross_entropy(logits, torch.ones_like(logits)).backward()
        optimisers[0].step()
    plain, _ = with_small_discriminator(0.0)
    for batch in list(task.batches(0, 0))[:2]:
        plain.compute(batch)
    differs = False
    for name, value in small.state_dict().items():
        torch.testing.assert_close(
            value, expected.state_dict()[name], rtol=0, atol=1e-7
        )  # a step is 2e-4
        differs |= not torch.allclose(value, plain.discriminator.state_dict()[name], atol=1e-5)
    assert differs, "without the penalty it would be elsewhere"


def penalty_of(model: Discriminator, images: Tensor) -> Tensor:
    return model.with_gradient(images)[1].square().sum()


def slopes_of(model: Discriminator, images: Tensor) -> tuple[Tensor, ...]:
    return torch.autograd.grad(penalty_of(model, images), list(model.parameters()))


def with_activation(activation: nn.Module) -> Discriminator:
    torch.manual_seed(0)
    model = Discriminator(1, width=2).double()
    for place, module in enumerate(model.main):
        if isinstance(module, nn.LeakyReLU):
            model.main[place] = activation
    return model


def test_its_gradient_through_convolutions_and_batch_norms() -> None:
    """The double backward along a random direction, against a difference quotient in float64.

    With a smooth activation: across the kink of a leaky ReLU the penalty jumps.
    """
    model = with_activation(nn.Softplus())
    images = torch.rand(4, 1, 64, 64, dtype=torch.float64) * 2 - 1
    directions = [torch.randn_like(weight) for weight in model.parameters()]
    slope = sum(
        float((g * d).sum()) for g, d in zip(slopes_of(model, images), directions, strict=True)
    )
    values = []
    for sign in (1, -1):
        moved = deepcopy(model)
        with torch.no_grad():
            for weight, direction in zip(moved.parameters(), directions, strict=True):
                weight.add_(sign * 1e-6 * direction)
        values.append(penalty_of(moved, images).item())
    assert slope == pytest.approx((values[0] - values[1]) / 2e-6, rel=1e-5)


def test_overwriting_activations_does_not_spoil_it() -> None:
    images = torch.rand(4, 1, 64, 64, dtype=torch.float64)
    in_place, copying = (with_activation(nn.LeakyReLU(0.2, inplace)) for inplace in (True, False))
    for ours, expected in zip(slopes_of(in_place, images), slopes_of(copying, images), strict=True):
        torch.testing.assert_close(ours, expected)


def test_half_precision_is_accurate_enough() -> None:
    torch.manual_seed(0)
    model = Discriminator(1, width=8)
    images = torch.rand(16, 1, 64, 64) * 2 - 1
    weights = list(model.parameters())
    results = []
    for half in (True, False):
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            logits, gradient = model.with_gradient(images)
        assert gradient.dtype == torch.float32
        assert logits.dtype == (torch.bfloat16 if half else torch.float32)
        penalty = gradient.square().sum()
        slopes = torch.autograd.grad(penalty, weights)
        results.append((penalty.item(), torch.cat([slope.flatten() for slope in slopes])))
    (value, slope), (exact, exact_slope) = results
    assert value == pytest.approx(exact, rel=0.02)
    assert torch.cosine_similarity(slope, exact_slope, dim=0) > 0.99


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_it_is_a_part_of_its_own(precision: str, tmp_path: Path) -> None:
    """The first step's other losses are those without it, and its own is written to the lines."""
    batches = [task_of(bare("atom", 0, f"precision={precision}", f"r1={r}")) for r in (0, 10)]
    parts = []
    for task in batches:
        [batch, *_] = task.batches(0, 0)
        seed_step(0, "step", 0, 0)
        parts.append(task.compute(batch))
    assert list(parts[0]) == ["discriminator", "generator", "method"]
    assert list(parts[1]) == ["discriminator", "generator", "r1", "method"]
    assert parts[1]["discriminator"] == parts[0]["discriminator"]
    assert parts[1]["r1"] > 0
    if precision == "32-true":
        key = bare("plain", 0, "r1=10", "train_samples=64", "samples=8")
        run(key, tmp_path)
        assert all(line["r1"] > 0 for line in read_metrics(key.folder(tmp_path)))
