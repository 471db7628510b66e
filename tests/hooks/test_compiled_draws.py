"""Compiled models that sample tokens or pairs: the draws of an uncompiled one, in one graph."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from small_models import batch, mlp
from torch import Tensor, nn

import atomsep
from atomsep import AtomLoss

STEPS = 12  # more often than torch.compile compiles again


@pytest.fixture(autouse=True)
def _empty_cache() -> Iterator[None]:
    torch.compiler.reset()
    torch._dynamo.utils.counters.clear()
    yield
    torch.compiler.reset()


def train(model: nn.Module, run: Any, attachment: Any) -> list[Any]:
    """Losses and gradients of some steps, which are of two sizes."""
    found: list[Any] = []
    for step in range(STEPS):
        model.zero_grad()
        task = run(batch(6 if step < STEPS // 2 else 7)).logsumexp(1).mean()
        loss = attachment.loss()
        (task + loss).backward()
        found += [loss.detach(), *(p.grad.clone() for p in model.parameters())]  # type: ignore[union-attr]
        found.append(attachment.criterion.draws)
    return found


CRITERIA: dict[str, dict[str, Any]] = {
    "tokens": {"tokens": 3, "seed": -1},
    "tokens, large seed": {"tokens": 3, "seed": 1 << 70},
    "pairs": {"pairs": "sampled"},
    "both": {"tokens": 3, "pairs": "sampled"},
}


@pytest.mark.parametrize(
    ("case", "backend"), [*((case, "aot_eager") for case in CRITERIA), ("both", "inductor")]
)
def test_compiled_steps_draw_what_others_draw(case: str, backend: str) -> None:
    model = mlp()
    expected = train(model, model, atomsep.attach(model, "0", AtomLoss(**CRITERIA[case])))
    model = mlp()
    attachment = atomsep.attach(model, "0", AtomLoss(**CRITERIA[case]))
    run = torch.compile(model, backend=backend, fullgraph=True)
    torch.testing.assert_close(train(model, run, attachment), expected)
    counters = torch._dynamo.utils.counters
    assert counters["stats"]["unique_graphs"] <= 2, "one for each size"
    assert not counters["graph_break"]


def test_two_layers_of_one_graph_draw_apart() -> None:
    """Though both draws look the same to a compiler."""

    class Twins(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.first, self.second = nn.Linear(3, 8), nn.Linear(3, 8)
            self.second.load_state_dict(self.first.state_dict())

        def forward(self, x: Tensor) -> Tensor:
            return self.first(x).sum() + self.second(x).sum()

    def importances_of_drawn(run: Any, attachment: Any) -> list[Tensor]:
        run(batch())
        return [tap.forwards.read().statistics.table.detach() for tap in attachment._taps]

    model = Twins()
    attachment = atomsep.attach(model, ["first", "second"], AtomLoss(tokens=2))
    expected = importances_of_drawn(model, attachment)
    assert not torch.equal(*expected)
    attachment.criterion.draws = 0
    found = importances_of_drawn(torch.compile(model, backend="aot_eager"), attachment)
    torch.testing.assert_close(found, expected)
    assert attachment.criterion.draws == 2


def test_a_whole_step_in_one_graph_draws_its_pairs() -> None:
    model, x = mlp(), batch()
    criterion = AtomLoss(pairs="sampled")
    attachment = atomsep.attach(model, "0", criterion, weight=1.0)

    def step(x: Tensor) -> Tensor:
        model(x)
        return attachment.loss()

    expected = [step(x).detach() for _ in range(4)]
    criterion.draws = 0
    compiled = torch.compile(step, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close([compiled(x).detach() for _ in range(4)], expected)
    assert len({value.item() for value in expected}) == 4


def test_a_copy_of_a_compiled_model_counts_on_its_own() -> None:
    model = mlp()
    attachment = atomsep.attach(model, "0", AtomLoss(tokens=2))
    torch.compile(model, backend="aot_eager")(batch())
    twin = copy.deepcopy(model)
    [copied] = atomsep.attachments(twin)
    run = torch.compile(twin, backend="aot_eager")
    for _ in range(2):
        run(batch())
    assert (attachment.criterion.draws, copied.criterion.draws) == (1, 3)
