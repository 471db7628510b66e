"""Layers that run more than once, or never, between two calls of loss()."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from by_hand import WEIGHT, assert_same, gradients, plain_loss
from small_models import batch, mlp
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import atomsep
from atomsep import AtomLoss, AtomWarning

LEFT_OUT = "'0' ran more than once in training since the last loss.. and only the last run counts"


def latent_of(model: Any, x: Tensor) -> Tensor:
    return nn.functional.linear(x, model[0].weight, model[0].bias)


def silently(attachment: atomsep.Attachment) -> Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return attachment.loss()


# runs="mean"


def test_the_mean_over_runs_is_that_of_their_losses() -> None:
    model = mlp().double()
    inputs = [batch().double() * scale for scale in (1, 2, 3)]
    inputs[1] = inputs[1][:4]  # of another size
    task = sum(model(x).square().mean() for x in inputs)
    losses = torch.stack([plain_loss(latent_of(model, x)) for x in inputs])
    expected = gradients(model, task + WEIGHT * losses.mean())
    attachment = atomsep.attach(model, "0", weight=WEIGHT, runs="mean")
    for _ in range(3):
        task = sum(model(x).square().mean() for x in inputs)
        loss = attachment.loss()
        torch.testing.assert_close(loss, WEIGHT * losses.mean())
        assert_same(gradients(model, task + loss), expected)
    model(inputs[0])
    torch.testing.assert_close(attachment.loss(), WEIGHT * losses[0])  # earlier ones are taken
    with pytest.raises(RuntimeError, match="no new forward"):
        attachment.loss()


def test_the_mean_over_runs_of_a_layer_in_one_forward() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.shared = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            first = self.shared(x)
            return first, self.shared(torch.tanh(first))

    model, x = Twice().double(), torch.randn(4, 5, 4, dtype=torch.float64)
    expected = torch.stack([plain_loss(latent) for latent in model(x)]).mean()
    attachment = atomsep.attach(model, "shared", weight=1.0, runs="mean")
    model(x)
    torch.testing.assert_close(attachment.loss(), expected)


def test_only_training_runs_enter_the_mean() -> None:
    model, x = mlp(), batch()
    attachment = atomsep.attach(model, "0", weight=1.0, runs="mean")
    model(x)
    with torch.no_grad():
        model(2 * x)
    model.eval()
    model(3 * x)
    model.train()
    torch.testing.assert_close(attachment.loss(), AtomLoss()(latent_of(model, x)))


def test_checkpointed_runs_enter_the_mean_once() -> None:
    model = mlp().double()
    inputs = [batch().double() * scale for scale in (1, 2)]
    task = sum(model(x).square().mean() for x in inputs)
    losses = torch.stack([plain_loss(latent_of(model, x)) for x in inputs])
    expected = gradients(model, task + WEIGHT * losses.mean())
    attachment = atomsep.attach(model, "0", weight=WEIGHT, runs="mean")
    for _ in range(2):
        task = sum(checkpoint(model, x, use_reentrant=False).square().mean() for x in inputs)
        assert_same(gradients(model, task + attachment.loss()), expected)


def test_runs_of_a_compiled_model() -> None:
    torch.compiler.reset()
    model, inputs = mlp(), [batch(), 2 * batch()]
    losses = torch.stack([AtomLoss()(latent_of(model, x)) for x in inputs])
    [expected] = torch.autograd.grad(losses.mean(), model[0].weight)
    attachment = atomsep.attach(model, "0", weight=1.0, runs="mean")
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    for _ in range(3):
        for x in inputs:
            compiled(x)
        loss = attachment.loss()
        torch.testing.assert_close(loss, losses.mean())
        torch.testing.assert_close(torch.autograd.grad(loss, model[0].weight)[0], expected)


# A run that is left out


@pytest.mark.parametrize(
    ("backward", "criterion"),
    [
        ("together", "default"),
        ("together", "learned"),
        ("together", "watched"),
        ("together", "not kept"),  # as where a batch norm is recomputed
        ("apart", "default"),
    ],
)
def test_a_run_that_trains_but_is_left_out_is_noticed_once(backward: str, criterion: str) -> None:
    model, x = mlp(), batch()
    loss = AtomLoss(charge=nn.Linear(8, 1)) if criterion == "learned" else None
    attachment = atomsep.attach(model, "0", loss, watch_gradients=criterion == "watched")
    told = []
    for _ in range(4):
        first = model(x).sum()
        if criterion == "not kept":
            attachment._taps[0].forwards.read().handed_on = None
        if backward == "apart":
            first.backward()
        total = model(2 * x).sum() + (0 if backward == "apart" else first)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            total = total + attachment.loss()
        told += caught
        total.backward()
    assert len(told) == 1
    assert told[0].category is AtomWarning
    assert told[0].filename == __file__
    assert 'runs="mean"' in str(told[0].message)


@pytest.mark.parametrize("runs", ["last", "mean"])
def test_whoever_says_what_counts_is_not_warned(runs: Any) -> None:
    model, x = mlp(), batch()
    attachment = atomsep.attach(model, "0", runs=runs)
    for _ in range(3):  # warnings are errors
        (model(x).sum() + model(2 * x).sum() + attachment.loss()).backward()


def test_runs_that_train_nothing_may_be_left_out() -> None:
    """As in the steps of a critic, whose generator's output is detached, and in evaluation."""
    model, critic, x = mlp(), nn.Linear(2, 1), batch()
    attachment = atomsep.attach(model, "0")
    for _ in range(3):  # warnings are errors
        for _ in range(2):
            critic(model(x).detach()).sum().backward()
        with torch.no_grad():
            model(x)
        fake = model(x)
        critic(fake.detach()).sum().backward()
        model.eval()
        model(x)
        model.train()
        (critic(fake).sum() + attachment.loss()).backward()


def test_a_penalty_on_the_slope_is_no_second_run() -> None:
    model, x = mlp(), batch().requires_grad_()
    attachment = atomsep.attach(model, "0")
    for _ in range(3):  # warnings are errors
        score = model(x).sum()
        [slope] = torch.autograd.grad(score, x, create_graph=True)
        (score + slope.square().sum() + attachment.loss()).backward()


def test_a_recomputed_checkpoint_is_no_second_run() -> None:
    model, x = mlp(), batch()
    attachment = atomsep.attach(model, "0")
    for _ in range(3):  # warnings are errors
        (checkpoint(model, x, use_reentrant=False).sum() + attachment.loss()).backward()


def test_a_compiled_run_does_not_tell_whether_it_trains() -> None:
    torch.compiler.reset()
    model, x = mlp(), batch()
    attachment = atomsep.attach(model, "0")
    torch.compile(model, backend="eager")(x)
    _ = attachment.importance  # takes over what the compiled run left
    model(x)
    attachment.loss()  # warnings are errors


# A loss that nobody asks for


def test_a_loss_that_is_never_asked_for_is_noticed_once() -> None:
    model, x = mlp(), batch()
    atomsep.attach(model, "0")
    for _ in range(49):
        model(x).sum().backward()
    with pytest.warns(AtomWarning, match="ran 50 times in training, but loss.. was never called"):
        model(x).sum().backward()
    for _ in range(60):
        model(x).sum().backward()


@pytest.mark.parametrize("case", ["asked once", "weight 0", "evaluation"])
def test_a_loss_that_is_not_due(case: str) -> None:
    model, x = mlp(), batch()
    attachment = atomsep.attach(model, "0", weight=0.0 if case == "weight 0" else 0.1)
    model(x)
    if case == "asked once":
        attachment.loss()
    model.train(case != "evaluation")
    for _ in range(60):  # warnings are errors
        model(x)


# A batch of one


def test_a_smaller_last_batch_is_no_batch_of_one() -> None:
    model = mlp()
    attachment = atomsep.attach(model, "0")
    for samples in (6, 1, 6, 1):  # warnings are errors
        model(batch(samples))
        attachment.loss()


def test_constraints_alone_need_no_pairs() -> None:
    model = mlp()
    attachment = atomsep.attach(model, "0", AtomLoss(energy=0))
    model(batch(1))
    attachment.loss()


# Learned maps


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("accumulate", [1, 12])
def test_learned_maps_that_no_optimiser_has_are_noticed_once(accumulate: int, fused: bool) -> None:
    """A fused optimiser does not count up the versions of what it writes to."""
    model, x = mlp(), batch()
    criterion = AtomLoss(charge=nn.Linear(8, 1))
    attachment = atomsep.attach(model, "0", criterion)
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-3, fused=fused)
    told = []
    for step in range(1, 80):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            (model(x).sum() + attachment.loss()).backward()
        told += caught
        if step % accumulate == 0:
            optimiser.step()
            optimiser.zero_grad()
    assert [w.category for w in told] == [AtomWarning]
    assert "pass attachment.parameters() to the optimiser" in str(told[0].message)


@pytest.mark.parametrize("accumulate", [1, 12])
@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW])
def test_learned_maps_in_the_optimiser(kind: Any, fused: bool, accumulate: int) -> None:
    model, x = mlp(), batch()
    attachment = atomsep.attach(model, "0", AtomLoss(charge=nn.Linear(8, 1)))
    optimiser = kind([*model.parameters(), *attachment.parameters()], lr=1e-3, fused=fused)
    for step in range(1, 40):  # warnings are errors
        (model(x).sum() + attachment.loss()).backward()
        if step % accumulate == 0:
            optimiser.step()
            optimiser.zero_grad()


def test_learned_maps_without_a_gradient_stay_as_they_are() -> None:
    """While the weight is 0, a fused optimiser changes the model alone."""
    model, x = mlp(), batch()
    attachment = atomsep.attach(model, "0", AtomLoss(charge=nn.Linear(8, 1)), weight=0.0)
    optimiser = torch.optim.SGD([*model.parameters(), *attachment.parameters()], 1e-3, fused=True)
    for _ in range(20):  # warnings are errors
        (model(x).sum() + attachment.loss()).backward()
        optimiser.step()


def test_frozen_maps_and_losses_that_are_not_added() -> None:
    for frozen in (True, False):
        model, x = mlp(), batch()
        criterion = AtomLoss(charge=nn.Linear(8, 1).requires_grad_(not frozen))
        attachment = atomsep.attach(model, "0", criterion)
        optimiser = torch.optim.SGD(model.parameters(), lr=1e-3)
        for _ in range(20):  # warnings are errors
            task, loss = model(x).sum(), attachment.loss()
            (task + loss if frozen else task).backward()
            optimiser.step()
