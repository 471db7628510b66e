"""Pairs sampled from all ranks are the same on every rank, whatever else a rank has drawn."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from rank_models import TOKENS, batch, make
from ranks import Ranks
from torch import Tensor

from atomsep import AtomLoss
from atomsep.core.layout import Layout
from atomsep.core.statistics import Statistics
from atomsep.functional import coulomb

SEED = 6
SIZES = (3, 1, 0, 6)
PLAIN: dict[str, Any] = {"pairs": "sampled", "seed": SEED}


def pair_by_pair(statistics: Statistics, room: int, steps: int = 1, **terms: float) -> Tensor:
    """The loss of the last of some steps, from the definition.

    Args:
        statistics: of all samples.
        room: how many samples the blocks of all ranks have room for.
        steps: how often pairs were drawn.
        **terms: other settings of the loss.
    """
    criterion, samples = AtomLoss(**PLAIN, **terms), len(statistics.count)
    for _ in range(steps):
        generator = criterion._generator_of_ranks(torch.device("cpu"))
    draw = torch.rand(2, room, generator=generator, dtype=torch.float64)[:, :samples].tolist()
    columns = statistics.charge_sum, statistics.protons, statistics.electrons
    net, plus, minus = (column / statistics.count for column in columns)
    energies = []
    for one, two in zip(*draw, strict=True):
        a = int(one * samples)
        b = (a + 1 + int(two * (samples - 1))) % samples
        assert a != b
        distance = torch.linalg.vector_norm(statistics.nucleus[a] - statistics.nucleus[b])
        radius = (statistics.radius[a] + statistics.radius[b]) / 2
        opposite = plus[a] * minus[b] + minus[a] * plus[b]
        soft = torch.hypot(distance, distance.new_tensor(criterion.terms.softening))
        energies.append(coulomb(net[a] * net[b], opposite, radius, soft))
    constraints = net.square() + (statistics.charge_square / statistics.count - 2 / 3).square()
    return torch.stack(energies).mean() + constraints.mean()


def drawing(rank: int, **terms: float) -> Any:
    x, _ = batch(sum(SIZES), torch.float64)
    model, [attachment] = make({"losses": [PLAIN | terms]})
    model(x.split(SIZES)[rank])
    loss = attachment.loss()
    loss.backward()
    for parameter in model.parameters():
        if parameter.grad is not None:
            dist.all_reduce(parameter.grad)
            parameter.grad /= len(SIZES)
    return loss.item(), model.second.weight.grad, attachment.criterion.pair_draws


@pytest.mark.parametrize("terms", [{}, {"softening": 0.0}], ids=["softened", "not softened"])
def test_sampled_pairs_are_drawn_from_all_samples(four: Ranks, terms: dict[str, float]) -> None:
    answers = four.run(drawing, **terms)
    model, [attachment] = make({})
    attachment.detach()
    x, _ = batch(sum(SIZES), torch.float64)
    measured = AtomLoss(group=None).measure(model._hidden(x), None, Layout())
    expected = 0.7 * pair_by_pair(measured.statistics, len(SIZES) * max(SIZES), **terms)
    expected.backward()
    for value, gradient, draws in answers:
        assert value == pytest.approx(expected.item(), rel=1e-12)
        torch.testing.assert_close(gradient, model.second.weight.grad, rtol=1e-10, atol=1e-14)
        assert draws == 1


def of_equal_samples(rank: int, weight: float, **settings: Any) -> Any:
    """Loss and gradient where the energy is infinite: equal samples without softening."""
    model, [attachment] = make({"losses": [{"softening": 0.0, **settings}]})
    attachment.weight = weight
    x, _ = batch(1, torch.float64)
    model(x.expand(SIZES[rank], -1, -1))
    loss = attachment.loss()
    loss.backward()
    return loss.item(), model.second.weight.grad


@pytest.mark.parametrize("pairs", ["all", "sampled"])
def test_what_has_a_weight_of_0_is_left_out(four: Ranks, pairs: str) -> None:
    for loss, gradient in four.run(of_equal_samples, 0.0, pairs=pairs):
        assert loss == 0
        assert torch.equal(gradient, torch.zeros_like(gradient))
    values = set()
    for loss, gradient in four.run(of_equal_samples, 0.7, pairs=pairs, energy=0.0):
        assert gradient.isfinite().all()
        values.add(loss)
    [value] = values
    assert value > 0


CASES: dict[str, dict[str, Any]] = {
    "an empty rank": {"sizes": SIZES},
    "a rank with no more tokens than are drawn": {"lengths": (TOKENS, TOKENS, 3, TOKENS)},
    "a forward on one rank alone": {"alone": 0},
    "a state of one rank": {"stored": True},
}


def drawing_tokens(
    rank: int,
    sizes: tuple[int, ...] = (3, 3, 3, 3),
    lengths: tuple[int, ...] = (TOKENS,) * 4,
    alone: int | None = None,
    stored: bool = False,
) -> list[tuple[float, float]]:
    """Losses with sampled tokens and pairs, and those of the pairs that they should have."""
    model, [attachment] = make({"losses": [{**PLAIN, "tokens": 3}]})
    found = []
    for step in range(3):
        x, _ = batch(sum(sizes), torch.float64, step)
        x = x.split(sizes)[rank][:, : lengths[rank]]
        if rank == alone:
            model(x)
        model(x)
        loss = attachment.loss()
        if stored:
            state = [attachment.state_dict()]
            dist.broadcast_object_list(state, 0)
            attachment.load_state_dict(state[0])
        gathered = attachment.criterion.ranks.gathered
        assert gathered is not None
        everyone = Statistics(gathered.table, gathered.count, gathered=gathered).of_all()
        expected = pair_by_pair(everyone, len(gathered.count), step + 1)
        found.append((loss.item(), 0.7 * expected.item()))
    return found


@pytest.mark.parametrize("case", CASES)
def test_ranks_that_draw_tokens_more_or_less_often_draw_the_same_pairs(
    four: Ranks, case: str
) -> None:
    answers = four.run(drawing_tokens, **CASES[case])
    for answer in answers:
        assert not isinstance(answer, str), answer
        assert [mine for mine, _ in answer] == [value for value, _ in answers[0]]
        for mine, expected in answer:
            assert mine == pytest.approx(expected, rel=1e-12)


def out_of_step(rank: int) -> None:
    model, [attachment] = make({"losses": [PLAIN]})
    attachment.criterion.pair_draws = 7 * (rank == 2)
    model(batch(3, torch.float64)[0])
    attachment.loss()


def test_ranks_that_have_drawn_other_pairs_are_told(four: Ranks) -> None:
    """As where only one of them has loaded a checkpoint."""
    for answer in four.run(out_of_step):
        assert "the number of draws of pairs is 0 on rank 0 and 7 on rank 2" in answer
