"""How learned maps are run: in eval mode for a look, by one thread at a time."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from reference import make_batch
from torch import Tensor, nn

from atomsep import AtomLoss
from atomsep.core.layout import Layout
from atomsep.core.maps import Running, buffers_kept


class Score(nn.Module):
    """A map of the charge that normalises over the batch and drops features."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.norm, self.drop = nn.BatchNorm1d(4), nn.Dropout(0.5)
        self.linear = nn.Linear(4, 1)
        self.double()

    def forward(self, latent: Tensor) -> Tensor:
        normal = self.norm(latent.flatten(0, 1)).unflatten(0, latent.shape[:2])
        return self.linear(self.drop(normal))  # type: ignore[no-any-return]


def buffers_of(module: nn.Module) -> dict[str, Tensor]:
    return {name: buffer.clone() for name, buffer in module.named_buffers()}


@pytest.mark.parametrize("which", ["charge", "position", "both"])
def test_a_look_is_in_eval_mode_and_leaves_no_trace(which: str) -> None:
    maps = {name: Score() for name in ("charge", "position") if which in (name, "both")}
    criterion, latent = AtomLoss(**maps), make_batch(5, 6, 4)  # type: ignore[arg-type]
    before, state = buffers_of(criterion), torch.get_rng_state()
    found, again = (criterion.look(latent, None, Layout()) for _ in range(2))
    assert torch.equal(torch.get_rng_state(), state)
    torch.testing.assert_close(buffers_of(criterion), before)
    assert all(module.training for module in criterion.modules())
    assert found[1] is not None
    assert again[1] is not None
    torch.testing.assert_close(found[1].table, again[1].table, rtol=0, atol=0)
    if "charge" in maps:
        expected = torch.tanh(maps["charge"].eval()(latent).squeeze(-1) / 2)
        torch.testing.assert_close(found[0], expected)


def test_parts_that_the_user_put_in_eval_mode_stay_there() -> None:
    criterion = AtomLoss(charge=Score())
    criterion.charge.norm.eval()  # type: ignore[union-attr]
    criterion.look(make_batch(5, 6, 4), None, Layout())
    assert [m.training for m in criterion.charge.children()] == [False, True, True]  # type: ignore[union-attr]


def test_a_look_that_fails_ends_it() -> None:
    criterion = AtomLoss(charge=nn.Linear(3, 1).double())
    with pytest.raises(ValueError, match="the charge map cannot read tokens"):
        criterion.look(make_batch(5, 6, 4), None, Layout())
    assert criterion.charge.training  # type: ignore[union-attr]


def test_the_charges_of_all_tokens_are_a_look() -> None:
    """Where tokens are drawn, those alone are trained on."""
    criterion, latent = AtomLoss(tokens=2, charge=Score()), make_batch(5, 6, 4)
    twin = Score()
    expected = torch.tanh(twin.eval()(latent).squeeze(-1) / 2)
    torch.manual_seed(1)
    charge = criterion.measure(latent, None, Layout()).charge
    state = torch.get_rng_state()
    torch.testing.assert_close(charge, expected)
    torch.manual_seed(1)
    nn.functional.dropout(torch.ones(5, 2, 4, dtype=torch.float64), 0.5)
    assert torch.equal(torch.get_rng_state(), state)
    assert criterion.charge.norm.num_batches_tracked == 1  # type: ignore[union-attr]
    assert criterion.charge.training  # type: ignore[union-attr]


def test_a_look_waits_for_a_thread_that_trains() -> None:
    """A mode belongs to a module, whichever thread runs it."""
    inside, looked = threading.Event(), threading.Event()
    seen: list[bool] = []

    class Waiting(nn.Module):
        def forward(self, latent: Tensor) -> Tensor:
            if threading.current_thread() is trainer:
                inside.set()
                looked.wait(0.3)
            seen.append(self.training)
            return latent.sum(-1)

    criterion, latent = AtomLoss(charge=Waiting()), make_batch(5, 6, 4)
    trainer = threading.Thread(target=lambda: criterion(latent))
    trainer.start()
    assert inside.wait(30)
    criterion.look(latent, None, Layout())
    looked.set()
    trainer.join()
    assert seen == [True, False]


def test_modes_turned_inside_of_a_look() -> None:
    drop = nn.Dropout()
    with Running([drop], training=False):
        assert not drop.training
        with Running([drop], training=False), Running([drop]):
            assert not drop.training
        assert not drop.training
    assert drop.training


def test_buffers_that_another_graph_saved_may_be_kept() -> None:
    """Autograd refuses a graph whose saved tensors were written to."""
    norm, latent = nn.BatchNorm1d(4).double(), make_batch(5, 6, 4).flatten(0, 1).requires_grad_()
    norm.eval()  # saves its statistics for the gradient
    first = norm(latent).square().sum()
    [expected] = torch.autograd.grad(first, latent, retain_graph=True)
    norm.train()
    before = buffers_of(norm)
    with buffers_kept(norm):
        norm(latent)
    torch.testing.assert_close(buffers_of(norm), before)
    torch.testing.assert_close(torch.autograd.grad(first, latent)[0], expected)


def test_drawing_and_looking_count_nothing_twice() -> None:
    criterion: Any = AtomLoss(tokens=2, charge=Score())
    latent = make_batch(5, 6, 4)
    for step in range(1, 4):
        criterion(latent)
        criterion.look(latent, None, Layout())
        assert criterion.draws == step
        assert criterion.charge.norm.num_batches_tracked == step
