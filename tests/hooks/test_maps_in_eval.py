"""Learned maps while the model is evaluated: `model.eval()` does not reach them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from small_models import batch, mlp
from torch import Tensor, nn

import atomsep
from atomsep import AtomLoss


class Score(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.norm, self.drop, self.linear = nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 1)

    def forward(self, latent: Tensor) -> Tensor:
        normal = self.norm(latent.flatten(0, 1)).unflatten(0, latent.shape[:2])
        return self.linear(self.drop(normal))  # type: ignore[no-any-return]


@pytest.fixture(autouse=True)
def _empty_cache() -> Iterator[None]:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


@pytest.mark.parametrize("tokens", [None, 2])
@pytest.mark.parametrize("mode", ["eval", "no_grad", "compiled"])
def test_an_evaluation_changes_nothing_and_is_certain(mode: str, tokens: int | None) -> None:
    model, x, score = mlp(), batch(), Score()
    attachment = atomsep.attach(model, "0", AtomLoss(tokens=tokens, charge=score))
    run: Any = torch.compile(model, backend="eager") if mode == "compiled" else model
    model.train(mode == "no_grad")
    latent = nn.functional.linear(x, *model[0].parameters())
    buffers = {name: buffer.clone() for name, buffer in score.named_buffers()}
    state = torch.get_rng_state()
    importances, stats = [], []
    for _ in range(3):
        with torch.set_grad_enabled(mode != "no_grad"):
            run(x)
        importances.append(attachment.importance)
        stats.append(attachment.stats)
    assert torch.equal(torch.get_rng_state(), state)
    torch.testing.assert_close(dict(score.named_buffers()), buffers)
    assert all(module.training for module in score.modules())
    expected = torch.tanh(score.eval()(latent).squeeze(-1) / 2)
    for importance in importances:
        torch.testing.assert_close(importance, expected.detach())
    assert stats[0] == stats[1] == stats[2]


@pytest.mark.parametrize("tokens", [None, 2])
def test_training_goes_on_as_if_nobody_had_evaluated(tokens: int | None) -> None:
    def losses(evaluate: bool) -> list[Tensor]:
        model, x = mlp(), batch()
        attachment = atomsep.attach(model, "0", AtomLoss(tokens=tokens, charge=Score()))
        torch.manual_seed(5)
        found = []
        for _ in range(3):
            model(x)
            found.append(attachment.loss().detach())
            if evaluate:
                model.eval()
                model(2 * x)
                model.train()
        return found

    torch.testing.assert_close(losses(True), losses(False), rtol=0, atol=0)


def test_a_compiled_step_turns_the_maps_back() -> None:
    """Drawn tokens: the charges of all are read in eval mode, those drawn in training mode."""

    def losses(backend: str) -> list[Tensor]:
        model, x, score = mlp(), batch(), Score()
        attachment = atomsep.attach(model, "0", AtomLoss(tokens=2, charge=score))
        run = torch.compile(model, backend=backend, fullgraph=True) if backend else model
        torch.manual_seed(5)
        found = []
        for _ in range(4):
            run(x)
            found += [attachment.loss().detach(), attachment.importance]
            assert all(module.training for module in score.modules())
        assert score.norm.num_batches_tracked == 4
        return found

    torch.testing.assert_close(losses("aot_eager"), losses(""))
