"""runs="mean": which runs wait for the loss, and what their consumers may do meanwhile."""

from __future__ import annotations

import gc
import warnings
import weakref
from typing import Any

import pytest
import torch
from by_hand import WEIGHT, assert_same, gradients, plain_loss
from small_models import batch, mlp
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import atomsep
from atomsep import AtomLoss, AtomWarning


def latent_of(model: Any, x: Tensor) -> Tensor:
    return nn.functional.linear(x, model[0].weight, model[0].bias)


def maps() -> dict[str, Any]:
    torch.manual_seed(3)
    return {"charge": nn.Linear(8, 1).double(), "position": nn.Linear(8, 3).double()}


# Runs that a backward pass has used


@pytest.mark.parametrize("case", ["default", "learned maps", "drawn", "watched", "checkpointed"])
def test_a_run_whose_graph_is_freed_counts_no_longer(case: str) -> None:
    """Its loss could have no gradient; it must not keep its graph either."""
    model, x, learned = mlp().double(), batch().double(), {}
    criterion = AtomLoss(tokens=5) if case == "drawn" else AtomLoss()
    if case == "learned maps":
        learned = maps()
        criterion = AtomLoss(**learned)
    both = nn.ModuleList([model, criterion])
    task = model(3 * x).square().mean()
    loss = WEIGHT * plain_loss(latent_of(model, 3 * x), **learned)
    expected = gradients(both, task + loss)
    options = {"runs": "mean", "watch_gradients": case == "watched"}
    attachment = atomsep.attach(model, "0", criterion, weight=WEIGHT, **options)  # type: ignore[arg-type]

    def run(x: Tensor) -> Tensor:
        if case == "checkpointed":
            return checkpoint(model, x, use_reentrant=False)  # type: ignore[no-any-return]
        return model(x)  # type: ignore[no-any-return]

    alive = []
    for step in range(20):
        run((1 + step) * x).sum().backward()
        alive.append(weakref.ref(attachment._taps[0].forwards.read().statistics.table))  # type: ignore[union-attr]
    task = run(3 * x).square().mean()
    gc.collect()
    assert not any(table() is not None for table in alive)
    found = attachment.loss()
    torch.testing.assert_close(found, loss)
    assert_same(gradients(both, task + found), expected)


def test_a_run_whose_graph_was_retained_still_counts() -> None:
    model, x = mlp().double(), batch().double()
    losses = [plain_loss(latent_of(model, scale * x)) for scale in (1, 2)]
    expected = gradients(model, WEIGHT * (losses[0] + losses[1]) / 2)
    attachment = atomsep.attach(model, "0", weight=WEIGHT, runs="mean")
    for scale in (1, 2):
        model(scale * x).sum().backward(retain_graph=True)
    assert_same(gradients(model, attachment.loss()), expected)


@pytest.mark.parametrize("learned", [False, True])
def test_forwards_of_one_step_all_count(learned: bool) -> None:
    """Though runs of earlier steps were used by a backward pass without the loss."""
    model, x = mlp().double(), batch().double()
    options = maps() if learned else {}
    total: Any = 0
    for scale in (1, 2, 3):
        loss = WEIGHT * plain_loss(latent_of(model, scale * x), **options) / 3
        total = total + model(scale * x).sum() + loss
    expected = gradients(model, total)
    attachment = atomsep.attach(model, "0", AtomLoss(**options), weight=WEIGHT, runs="mean")
    for _ in range(3):
        model(x).sum().backward()
        model(x).sum().backward()
        total = sum(model(scale * x).sum() for scale in (1, 2, 3))
        assert_same(gradients(model, total + attachment.loss()), expected)


def test_compiled_runs_whose_graphs_are_freed_count_no_longer() -> None:
    torch.compiler.reset()
    model, x = mlp().double(), batch().double()
    task = model(x).square().mean()
    expected = gradients(model, task + WEIGHT * plain_loss(latent_of(model, x)))
    attachment = atomsep.attach(model, "0", weight=WEIGHT, runs="mean")
    run = torch.compile(model, backend="aot_eager")
    for _ in range(3):
        run(2 * x).sum().backward()
    task = run(x).square().mean()
    assert_same(gradients(model, task + attachment.loss()), expected)


def test_a_run_in_front_of_a_detached_output_counts() -> None:
    """As a generator's in a step of the critic: nothing has freed its graph."""
    model, x = mlp().double(), batch().double()
    losses = [plain_loss(latent_of(model, scale * x)) for scale in (1, 2)]
    attachment = atomsep.attach(model, "0", weight=1.0, runs="mean")
    critic = nn.Linear(2, 1).double()
    critic(model(x).detach()).sum().backward()
    model(2 * x)
    torch.testing.assert_close(attachment.loss(), (losses[0] + losses[1]) / 2)


def told(steps: int, step: Any) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(steps):
            step()
    assert all(each.category is AtomWarning for each in caught)
    return [str(each.message) for each in caught]


def test_runs_that_pile_up_are_noticed_once() -> None:
    model, x = mlp(), batch()
    attachment = atomsep.attach(model, "0", runs="mean")
    model(x)
    attachment.loss()
    assert not told(50, lambda: model(x))
    [message] = told(60, lambda: model(x))
    assert "'0' is attached with runs=\"mean\"" in message
    assert "holds 50 of them now" in message
    attachment.loss()  # all of them, as before


def test_runs_that_pile_up_without_any_loss_are_told_of_that_alone() -> None:
    model, x = mlp(), batch()
    atomsep.attach(model, "0", runs="mean")
    [message] = told(120, lambda: model(x))
    assert "loss() was never called" in message


def test_a_layer_of_many_runs_per_step_is_fine() -> None:
    """As a recurrent cell's, also if some steps are longer than others."""
    model, x = mlp(), batch()
    attachment = atomsep.attach(model, "0", runs="mean")

    def step(runs: int) -> None:
        total = sum(model(x).sum() for _ in range(runs))
        (total + attachment.loss()).backward()

    step(20)
    assert not told(3, lambda: step(100))


# Consumers that write to what they get


class Tied(nn.Module):
    """A layer that runs twice, and a consumer that overwrites the output of one of the runs."""

    def __init__(self, written: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.head, self.written = nn.Linear(3, 8), nn.Linear(8, 2), written
        self.double()

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        first, second = self.layer(x), self.layer(y)
        if self.written == "first":
            return self.head(first.relu_() + second).square().mean()
        if self.written == "second":
            return self.head(first + second.relu_()).square().mean()
        return self.head(first + second).square().mean()

    def by_hand(self, x: Tensor, y: Tensor) -> Tensor:
        """Task and loss without in-place operations."""
        first, second = self.layer(x), self.layer(y)
        loss = WEIGHT * (plain_loss(first) + plain_loss(second)) / 2
        if self.written == "first":
            return self.head(first.relu() + second).square().mean() + loss
        if self.written == "second":
            return self.head(first + second.relu()).square().mean() + loss
        return self.head(first + second).square().mean() + loss


@pytest.mark.parametrize("written", ["first", "second", "none"])
def test_a_tied_layer_one_of_whose_outputs_is_overwritten(written: str) -> None:
    model, x = Tied(written), batch().double()
    expected = gradients(model, model.by_hand(x, 2 * x))
    attachment = atomsep.attach(model, "layer", weight=WEIGHT, runs="mean")
    for _ in range(4):
        task = model(x, 2 * x)
        assert_same(gradients(model, task + attachment.loss()), expected)
    assert attachment._taps[0].writes is (written != "none")


@pytest.mark.parametrize("written", ["first", "second"])
def test_a_tied_layer_that_is_overwritten_later(written: str) -> None:
    """Whichever run it is: the step is lost with a sentence, and the next one is right."""
    model, x = Tied("none"), batch().double()
    attachment = atomsep.attach(model, "layer", weight=WEIGHT, runs="mean")
    for _ in range(2):
        (model(x, 2 * x) + attachment.loss()).backward()
    model.written = written
    model(x, 2 * x)
    with pytest.raises(RuntimeError, match="overwritten in place for the first time"):
        attachment.loss()
    expected = gradients(model, model.by_hand(x, 2 * x))
    attachment.loss()  # of the runs by hand
    for _ in range(2):
        task = model(x, 2 * x)
        assert_same(gradients(model, task + attachment.loss()), expected)


def test_a_run_overwritten_before_the_next_is_lost_with_a_sentence() -> None:
    model, x = nn.Linear(3, 8), batch()
    attachment = atomsep.attach(model, "", weight=WEIGHT, runs="mean")
    for _ in range(2):
        (model(x).sum() + model(2 * x).sum() + attachment.loss()).backward()
    model(x).relu_()
    model(2 * x)
    with pytest.raises(RuntimeError, match="overwritten in place for the first time"):
        attachment.loss()
    assert attachment._taps[0].writes
