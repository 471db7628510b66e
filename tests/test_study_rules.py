"""The study's rules weigh the loss as plain autograd and the rules' definitions say."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from statistics import geometric_mean, mean
from typing import Any, NamedTuple

import pytest
import torch
from tiny_runs import SHARES, read_metrics, run
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint

from atomsep.experiments.registry import find_experiment
from atomsep.functional import form_atoms, neutrality, occupancy, pair_energy
from atomsep.methods import make_method

pytestmark = pytest.mark.usefixtures("study_methods")

SHARE, STEPS, LENGTH = 0.2, 103, 102


def factor(step: int) -> float:
    """Progress of a decay or warm-up, which ends one step before the last of these tests."""
    return min(1, step / LENGTH)


def calibrated(exact: list[float]) -> float:
    return exact[-1] if len(exact) <= 100 else geometric_mean(exact[:100])


class Rule(NamedTuple):
    """The weight, from the exact weights of all steps so far; and the weight of the energy."""

    weight: Callable[[list[float]], float] = calibrated
    energy: float = 1.0


RULES = {
    "atom-share": Rule(lambda exact: exact[-1]),
    "atom-calibrated": Rule(),
    "atom-capped": Rule(lambda exact: min(exact[-1], geometric_mean(exact[:100]))),
    "atom-decay": Rule(lambda exact: calibrated(exact) * (1 - factor(len(exact)))),
    "atom-warm-up": Rule(lambda exact: calibrated(exact) * factor(len(exact))),
    "atom-energy": Rule(energy=10.0),
    "atom-constraints": Rule(energy=0.1),
}


def task_loss(logits: Tensor, labels: Tensor, strength: float) -> Tensor:
    return strength * cross_entropy(logits, labels)


class Step(NamedTuple):
    """What a step of training is by hand, and what it was."""

    exact: float
    weight: float
    expected: Tensor
    found: Tensor
    shares: dict[str, float]


def small_model(dtype: torch.dtype) -> nn.Sequential:
    torch.manual_seed(0)
    first, last = nn.Linear(3, 4, dtype=dtype), nn.Linear(20, 2, dtype=dtype)
    return nn.Sequential(first, nn.Tanh(), nn.Flatten(), last)


def make_rule(name: str, **options: Any) -> Any:
    steps = {"steps": LENGTH} if name in {"atom-decay", "atom-warm-up"} else {}
    return make_method(name, features=4, **steps, **options)


def atom_loss(latent: Tensor, energy: float) -> Tensor:
    atoms = form_atoms(latent)
    pairs = len(latent) * (len(latent) - 1)
    return (
        energy * pair_energy(atoms).sum() / pairs
        + neutrality(atoms).mean()
        + occupancy(atoms).mean()
    )


def by_hand(
    model: Any, values: Tensor, energy: float, judge: Callable[[Tensor], Tensor]
) -> tuple[Tensor, Tensor]:
    """Gradients of the loss and of the task at the layer, without any hooks."""
    latent = model[0](values).detach().requires_grad_()
    [own] = torch.autograd.grad(atom_loss(latent, energy), latent)
    [task] = torch.autograd.grad(judge(model[1:](latent)), latent)
    return own, task


def train(name: str, dtype: torch.dtype = torch.float64, autocast: bool = False) -> Iterator[Step]:
    """Steps of a model that learns, each on another batch, with a task of changing strength."""
    model, method = small_model(dtype), make_rule(name)
    rule, before = RULES[name], []
    places = [buffer.data_ptr() for buffer in method.buffers()]
    binding = method.bind(model, "0", weight=SHARE)
    binding.watch_gradients = True
    for number in range(STEPS):
        values, labels = torch.randn(6, 5, 3, dtype=dtype), torch.randint(2, (6,))
        strength = (0.3, 3.0)[number % 2]
        judge = partial(task_loss, labels=labels, strength=strength)
        binding.detach()  # what is done by hand must not pass the hook
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            own, task = by_hand(model, values, rule.energy, judge)
            binding = method.bind(model, "0", weight=SHARE)
            binding.watch_gradients = True
            model.zero_grad()
            loss = judge(model(values)) + binding.loss()
        loss.backward()
        before.append(SHARE * float(task.double().norm() / own.double().norm()))
        weight = rule.weight(before)
        arriving = task.to(dtype) + weight * own.to(dtype)
        expected = arriving.flatten(0, 1).T @ values.flatten(0, 1)  # of a linear layer
        found = model[0].weight.grad
        yield Step(before[-1], weight, expected, found.clone(), binding.gradient_shares)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 0.02 * parameter.grad
    assert [buffer.data_ptr() for buffer in method.buffers()] == places, "a graph writes to these"
    assert int(method.step) == STEPS


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize(("dtype", "rtol"), [(torch.float64, 1e-6), (torch.float32, 1e-4)])
def test_the_gradient_is_the_tasks_plus_the_weighted_one_of_the_loss(
    name: str, dtype: torch.dtype, rtol: float
) -> None:
    """Step by step, before and after the hundredth; the weights are float32 sums."""
    steps = list(train(name, dtype))
    for number, step in enumerate(steps, 1):
        scale = float(step.expected.abs().max())
        message = f"step {number}"
        torch.testing.assert_close(
            step.found, step.expected, rtol=rtol, atol=rtol * scale, msg=message
        )
        share = SHARE * step.weight / step.exact
        assert step.shares["gradient_share"] == pytest.approx(share, rel=10 * rtol, abs=1e-9)
    exact = [step.exact for step in steps]
    assert max(exact) > 2 * min(exact), "the weights vary, or no rule could be told from another"
    assert mean(exact[:100]) > 1.02 * geometric_mean(exact[:100])
    assert min(exact[100:]) < geometric_mean(exact[:100]) < max(exact[100:])


@pytest.mark.parametrize("name", RULES)
def test_the_weight_under_autocast(name: str) -> None:
    """Gradients of a latent in bfloat16 have three digits."""
    for step in train(name, torch.float32, autocast=True):
        share = SHARE * step.weight / step.exact
        assert step.shares["gradient_share"] == pytest.approx(share, rel=0.03, abs=1e-6)
        torch.testing.assert_close(
            step.found, step.expected, rtol=0.05, atol=0.05 * float(step.expected.abs().max())
        )


def test_a_recomputation_is_no_forward() -> None:
    """The gradient is the one without a checkpoint, and nothing is held after it."""
    found = []
    for recomputed in (False, True):
        model, method = small_model(torch.float64), make_rule("atom-share")
        binding = method.bind(model, "0", weight=SHARE)
        binding.watch_gradients = True
        values = torch.randn(6, 5, 3, dtype=torch.float64)
        logits = checkpoint(model, values, use_reentrant=False) if recomputed else model(values)
        (logits.logsumexp(1).mean() + binding.loss()).backward()
        found.append([parameter.grad for parameter in model.parameters()])
        assert binding.gradient_shares["gradient_share"] == pytest.approx(SHARE)
        assert binding.held is None
        assert int(method.step) == 1
    torch.testing.assert_close(*found)


@pytest.mark.parametrize("name", RULES)
def test_nobody_waits_for_a_weight(name: str) -> None:
    """A fake tensor has no values: whoever asks for one, which would wait for a GPU, fails."""
    with FakeTensorMode():
        model, method = small_model(torch.float64), make_rule(name)
        binding = method.bind(model, "0", weight=SHARE)
        binding.watch_gradients = True
        for _ in range(2):
            (model(torch.randn(6, 5, 3).double()).sum() + binding.loss()).backward()
        assert binding.strength.own is not None


@pytest.mark.parametrize("name", RULES)
def test_a_step_without_a_gradient_of_the_task_has_no_weight_and_does_not_count(name: str) -> None:
    method, own = make_rule(name), torch.ones(4)
    assert method.weigh(SHARE, own, torch.zeros(4)) == 0
    assert method.weigh(SHARE, own, torch.full((4,), torch.inf)) == 0
    assert method.weigh(SHARE, torch.zeros(4), own) == 0
    assert (int(method.step), int(method.counted), float(method.log_weight)) == (3, 0, 0)
    if name not in {"atom-decay", "atom-warm-up"}:
        assert float(method.weigh(SHARE, own, 3 * own)) == pytest.approx(3 * SHARE)


def test_a_resumed_run_knows_the_weight() -> None:
    own = torch.ones(4)
    first = make_rule("atom-calibrated")
    for number in range(101):
        first.weigh(SHARE, own, (1 + number % 3) * own)
    second = make_rule("atom-calibrated")
    second.load_state_dict(first.state_dict())
    right = SHARE * geometric_mean(1 + number % 3 for number in range(100))
    assert float(second.weigh(SHARE, own, 50 * own)) == pytest.approx(right, rel=1e-5)


SMALL_GAN = ("train_samples=128", "samples=64", "batch=32", "r1=1", "ema=0.9")


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
@pytest.mark.parametrize(("name", "changes"), [("synthetic", ()), ("mnist-gan", SMALL_GAN)])
def test_experiments_ask_for_a_share(
    name: str, changes: tuple[str, ...], precision: str, tmp_path: Path
) -> None:
    changes = (*changes, "weight=0.2", f"precision={precision}")
    result, on_disk = run(find_experiment(name), "atom-share", tmp_path, *changes)
    lines = [line for line in read_metrics(on_disk.folder, start=True) if SHARES & line.keys()]
    found = [line["gradient_share"] for line in (*lines, result["strength_at_start"])]
    assert len(found) >= 3
    assert found == pytest.approx([0.2] * len(found), rel=1e-4 if precision == "32-true" else 0.01)
