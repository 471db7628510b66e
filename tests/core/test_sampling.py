"""AtomLoss with sampled pairs and drawn tokens, as in the paper."""

from __future__ import annotations

import copy
import math
import pickle
from collections import Counter

import pytest
import torch
from loss_batches import close, norms
from reference import make_batch, make_mask
from torch import Tensor

import atomsep.core.loss
from atomsep import AtomLoss
from atomsep import functional as F
from atomsep.core.layout import Layout


def draw(loss: AtomLoss, latent: Tensor, times: int) -> list[float]:
    return [loss(latent).item() for _ in range(times)]


def test_paper_setting() -> None:
    loss = AtomLoss.paper()
    assert (loss.pairs, loss.tokens, loss.terms.scale) == ("sampled", 100, "sum")
    assert (loss.terms.neutrality, loss.terms.occupancy) == (1, 1)
    assert AtomLoss.paper(1, tokens=7).terms.norm == 1
    assert AtomLoss.paper(1, tokens=7).tokens == 7


def test_sampling_leaves_the_global_generator_alone() -> None:
    latent = make_batch(5, 9, 3)
    before = torch.get_rng_state()
    draw(AtomLoss.paper(tokens=4), latent, 3)
    assert torch.equal(torch.get_rng_state(), before)


def test_the_global_generator_leaves_sampling_alone() -> None:
    latent = make_batch(5, 9, 3)
    with torch.random.fork_rng():
        torch.manual_seed(1)
        first = draw(AtomLoss.paper(tokens=4), latent, 3)
        torch.manual_seed(2)
        assert draw(AtomLoss.paper(tokens=4), latent, 3) == first


def test_seeds_repeat_and_differ() -> None:
    latent = make_batch(7, 9, 3)
    sequences = [draw(AtomLoss.paper(tokens=4, seed=seed), latent, 4) for seed in (0, 1, 2, -5)]
    assert draw(AtomLoss.paper(tokens=4, seed=1), latent, 4) == sequences[1]
    values = [value for sequence in sequences for value in sequence]
    assert len(set(values)) == len(values), "every draw of every seed is another"


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda loss: pickle.loads(pickle.dumps(loss))])
def test_copies_go_on_where_the_original_was(copied) -> None:
    latent = make_batch(7, 9, 3)
    loss = AtomLoss.paper(tokens=4)
    draw(loss, latent, 3)
    twin = copied(loss)
    assert draw(twin, latent, 3) == draw(loss, latent, 3)
    draw(twin, latent, 1)
    later = draw(loss, latent, 2)
    assert draw(twin, latent, 1) == later[1:], "and draw on their own from then on"


def test_sampled_pairs_are_uniform_over_different_samples(monkeypatch) -> None:
    samples, draws = 4, 1200
    drawn = Counter()

    def record(statistics, terms, pairs):
        assert len(pairs[0]) == len(pairs[1]) == samples
        drawn.update(zip(pairs[0].tolist(), pairs[1].tolist(), strict=True))
        return statistics.nucleus.sum()

    monkeypatch.setattr(atomsep.core.loss, "pair_loss", record)
    draw(AtomLoss(pairs="sampled"), make_batch(samples, 2, 2), draws)
    possible = {(a, b) for a in range(samples) for b in range(samples) if a != b}
    assert set(drawn) == possible
    expected = samples * draws / len(possible)
    deviation = sum((count - expected) ** 2 / expected for count in drawn.values())
    assert deviation < 31.3, "chi-squared of 11 degrees of freedom, 1 in 1,000"


@norms
def test_sampled_pairs_average_to_the_full_loss(norm: int) -> None:
    latent = make_batch(5, 4, 3, seed=10)
    full = AtomLoss(norm)(latent).item()
    values = torch.tensor(draw(AtomLoss(norm, pairs="sampled"), latent, 1500))
    error = values.std().item() / math.sqrt(len(values))
    assert error < 0.05 * abs(full), "enough draws to tell"
    assert abs(values.mean().item() - full) < 3.5 * error


def test_gradient_of_sampled_pairs_averages_to_the_full_gradient() -> None:
    latent = make_batch(4, 3, 3, seed=11).requires_grad_()
    (full,) = torch.autograd.grad(AtomLoss()(latent), latent)
    loss = AtomLoss(pairs="sampled")
    grads = torch.stack([torch.autograd.grad(loss(latent), latent)[0] for _ in range(600)])
    error = grads.std(0) / math.sqrt(len(grads))
    assert ((grads.mean(0) - full).abs() < 4.5 * error + 1e-12).all()


def which_tokens(loss: AtomLoss, mask: Tensor | None, samples: int, length: int) -> Tensor:
    """Which tokens a forward takes, `(M, N)`: protons at the corners of a simplex tell."""
    latent = torch.eye(length).expand(samples, -1, -1)
    latent = torch.cat([torch.full((samples, length, 1), 99.0), latent], -1)
    statistics = loss.measure(latent, mask, Layout()).statistics
    return (statistics.nucleus * statistics.count.unsqueeze(1)).round(decimals=4)


def test_drawn_tokens_are_real_and_different() -> None:
    mask = make_mask([8, 5, 3, 2], 8)
    loss = AtomLoss(tokens=3)
    seen = torch.zeros(4, 8)
    for _ in range(300):
        taken = which_tokens(loss, mask, 4, 8)
        assert ((taken == 0) | (taken == 1)).all(), "each at most once"
        assert (taken.sum(1) == torch.tensor([3, 3, 3, 2])).all()
        assert (taken[~mask] == 0).all()
        seen += taken
    share = seen / 300
    for sample, length in enumerate([8, 5, 3, 2]):
        expected = min(1, 3 / length)
        error = math.sqrt(expected * (1 - expected) / 300)
        assert ((share[sample, :length] - expected).abs() <= 4 * error + 1e-9).all()


def test_samples_draw_their_tokens_independently() -> None:
    taken = which_tokens(AtomLoss(tokens=10), None, 6, 20)
    assert len({tuple(row.tolist()) for row in taken}) == 6


def test_drawn_tokens_give_the_loss_and_gradient_of_these_alone() -> None:
    length, loss = 6, AtomLoss(tokens=2)
    taken = which_tokens(copy.deepcopy(loss), None, 3, length).bool()
    latent = make_batch(3, length, 4, seed=12).requires_grad_()
    expected = AtomLoss()(torch.stack([e[t] for e, t in zip(latent, taken, strict=True)]))
    value = loss(latent)
    close(value, expected)
    (grad,) = torch.autograd.grad(value, latent)
    close(grad, torch.autograd.grad(expected, latent)[0])
    assert (grad[~taken] == 0).all()
    assert (grad[taken] != 0).any(-1).all()


def test_charges_of_all_tokens_are_shown_when_some_are_drawn() -> None:
    latent = make_batch(3, 6, 4, seed=13)
    charge = AtomLoss(tokens=2).measure(latent, None, Layout()).charge
    close(charge, F.form_atoms(latent).charge, 1e-6)


def test_fewer_tokens_than_asked_for_are_all_taken() -> None:
    latent = make_batch(5, 7, 3, seed=14)
    every = draw(AtomLoss(scale="sum", pairs="sampled"), latent, 3)
    assert draw(AtomLoss.paper(), latent, 3) == every
    assert draw(AtomLoss.paper(tokens=7), latent, 3) == every
    assert draw(AtomLoss.paper(tokens=6), latent, 3) != every


@pytest.mark.parametrize("options", [{"pairs": "sampled"}, {"tokens": 4}], ids=["pairs", "tokens"])
def test_a_restored_loss_goes_on_drawing(options: dict[str, object]) -> None:
    """Through the state of a module around it, as a trainer saves it, also on disk."""
    latent = make_batch(7, 9, 3)
    loss = torch.nn.ModuleDict({"atoms": AtomLoss(**options)})  # type: ignore[arg-type]
    draw(loss["atoms"], latent, 3)
    state = pickle.loads(pickle.dumps(loss.state_dict()))
    assert all(isinstance(value, Tensor) for value in state.values()), "safetensors takes no other"
    later = draw(loss["atoms"], latent, 2)
    restored = torch.nn.ModuleDict({"atoms": AtomLoss(**options)})  # type: ignore[arg-type]
    restored.load_state_dict(state)
    assert draw(restored["atoms"], latent, 2) == later


def test_states_without_draws() -> None:
    """A loss that never samples has none, and older states still load."""
    assert AtomLoss().state_dict() == {}
    loss = AtomLoss.paper()
    loss.load_state_dict({})
    assert loss.draws == 0
    loss.load_state_dict({"draws": torch.tensor(3)})  # before ranks had a count of their own
    assert (loss.draws, loss.pair_draws) == (3, 0)
    with pytest.raises(RuntimeError, match="Unexpected key"):
        AtomLoss().load_state_dict({"draws": torch.tensor(3)})
