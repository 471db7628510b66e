"""stats and importance belong to the same forward, the last one."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from small_models import batch, mlp
from torch import Tensor, nn

import atomsep
from atomsep import AtomLoss
from atomsep.functional import form_atoms, neutrality, pair_energy
from atomsep.hooks.stats import position_share


def by_hand(latent: Tensor, mask: Tensor | None = None) -> dict[str, float]:
    atoms = form_atoms(latent, mask)
    samples = len(latent)
    return {
        "energy": pair_energy(atoms).sum().item() / (samples * (samples - 1)),
        "neutrality": neutrality(atoms).mean().item(),
        "radius": atoms.radius.mean().item(),
    }


def parts(stats: dict[str, float]) -> dict[str, float]:
    return {name: stats[name] for name in ("energy", "neutrality", "radius")}


@pytest.mark.parametrize("how", ["eval", "no_grad", "inference", "eval compiled"])
def test_stats_of_a_forward_without_a_loss(how: str) -> None:
    torch.compiler.reset()
    model, x = mlp().double(), batch().double()
    attachment = atomsep.attach(model, "0")
    run: Any = torch.compile(model, backend="aot_eager") if "compiled" in how else model
    latent = nn.functional.linear(x, *model[0].parameters())
    run(x)
    assert attachment.stats["training"] == 1
    assert parts(attachment.stats) == pytest.approx(by_hand(latent))
    attachment.loss()
    model.train("eval" not in how)
    if how == "inference":
        with torch.inference_mode():
            run(x.flip(0)[:4])
    else:
        with torch.set_grad_enabled(how != "no_grad"):
            run(x.flip(0)[:4])
    assert attachment.stats["training"] == 0
    assert parts(attachment.stats) == pytest.approx(by_hand(latent.flip(0)[:4]))
    expected = torch.tanh(latent.flip(0)[:4, :, 0] / 2).float()
    torch.testing.assert_close(attachment.importance, expected)
    model.train()
    run(x)
    assert attachment.stats["training"] == 1
    assert parts(attachment.stats) == pytest.approx(by_hand(latent))


def test_taking_the_loss_of_an_earlier_forward_leaves_the_stats_of_the_last() -> None:
    model, x = mlp().double(), batch().double()
    attachment = atomsep.attach(model, "0")
    model(x)
    model.eval()
    model(2 * x)
    evaluated = attachment.stats
    model.train()
    attachment.loss()
    assert attachment.stats == evaluated
    assert evaluated["training"] == 0


def test_an_evaluation_draws_no_tokens() -> None:
    """Which would change what later training steps draw."""
    model, x = mlp(), batch()
    attachment = atomsep.attach(model, "0", AtomLoss(tokens=2))
    model(x)
    before = attachment.criterion.draws
    model.eval()
    model(x)
    latent = nn.functional.linear(x, *model[0].parameters())
    assert parts(attachment.stats) == pytest.approx(by_hand(latent), rel=1e-4)
    assert attachment.criterion.draws == before


class Masked(nn.Module):
    def __init__(self, features: int = 4) -> None:
        super().__init__()
        self.linear = nn.Linear(3, features)

    def forward(self, x: Tensor, attention_mask: Tensor) -> Tensor:
        return self.linear(x)


def test_an_evaluation_is_not_stopped_by_what_has_no_stats() -> None:
    """A sample that is all padding, or a layer with one feature."""
    x, mask = torch.randn(2, 3, 3), torch.tensor([[True, True, False], [False, False, False]])
    for features in (4, 1):
        model = Masked(features).eval()
        attachment = atomsep.attach(model, "linear")
        model(x, mask)
        assert attachment.importance.shape == (2, 3)
        assert (attachment.importance[~mask] == 0).all()
        with pytest.raises(RuntimeError, match="has importance but no stats"):
            _ = attachment.stats


def test_watched_gradients_are_those_of_a_training_forward() -> None:
    model, x = mlp(), batch()
    attachment = atomsep.attach(model, "0", watch_gradients=True)
    (model(x).sum() + attachment.loss()).backward()
    assert "gradient_share" in attachment.stats
    model.eval()
    model(x)
    assert "gradient_share" not in attachment.stats


# What the charges are like


def share(charge: Tensor, real: Tensor | None = None) -> float:
    return position_share(charge if real is None else charge * real, real).item()


def test_maps_that_are_the_same_and_maps_that_are_noise() -> None:
    torch.manual_seed(0)
    noise, pattern = torch.rand(40, 50) - 0.5, torch.rand(50) - 0.5
    assert share(pattern.expand(40, 50)) == pytest.approx(1)
    assert share(noise) == pytest.approx(0, abs=0.03)
    small = [share(rows) for rows in noise.split(4)]  # in small batches too, on average
    assert sum(small) / len(small) == pytest.approx(0, abs=0.05)
    half = share(noise + pattern)
    assert half == pytest.approx(0.5, abs=0.1)
    assert share(0.01 * (noise + pattern)) == pytest.approx(half, rel=1e-4)


def test_padding_is_left_out_of_the_share() -> None:
    torch.manual_seed(0)
    charge, real = (
        torch.rand(6, 5) - 0.5,
        torch.arange(5) < torch.tensor([5, 4, 3, 5, 2, 4])[:, None],
    )
    columns = [charge[:, i][real[:, i]] for i in range(5)]
    flat = torch.cat(columns)
    within = sum(((column - column.mean()) ** 2).sum() for column in columns)
    expected = 1 - (within / (len(flat) - 5)) / flat.var()
    assert share(charge, real) == pytest.approx(expected.item(), rel=1e-4)


def of_least_squares(charge: Tensor, real: Tensor) -> float:
    """The adjusted R² of a regression of the real charges on one indicator per position."""
    flat = charge[real].double()
    design = torch.eye(charge.shape[1]).double().expand(*charge.shape, -1)[real]
    rest = flat - design @ torch.linalg.lstsq(design, flat.unsqueeze(1)).solution.squeeze(1)
    within = rest.square().sum() / (len(flat) - len(design.unique(dim=0)))
    return 1 - (within / flat.var()).item()


class Rectified(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.relu = nn.Linear(3, 4), nn.ReLU()

    def forward(self, x: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        return self.relu(self.linear(x)).mean()  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("how", "tokens"),
    [("training", None), ("training", 2), ("eval", None), ("eval", 2), ("compiled", None)],
)
@pytest.mark.parametrize("padded", [False, True])
def test_charges_of_0_are_no_padding(how: str, tokens: int | None, padded: bool) -> None:
    """A rectified layer has many."""
    torch.compiler.reset()
    torch.manual_seed(0)
    model = Rectified().train(how != "eval")
    x, real = torch.randn(40, 6, 3), torch.ones(40, 6).bool()
    if padded:
        real[::3, 4:] = False
    attachment = atomsep.attach(model, "relu", AtomLoss(tokens=tokens), layout="channels_last")
    run: Any = torch.compile(model, backend="aot_eager") if how == "compiled" else model
    run(x, attention_mask=real if padded else None)
    charge = torch.tanh(model.linear(x).relu()[..., 0] / 2).detach()
    assert ((charge == 0) & real).any()
    right = of_least_squares(charge, real)
    assert attachment.stats["position_share"] == pytest.approx(right, rel=1e-3, abs=1e-6)


def test_what_separates_learned_charges_from_those_of_untrained_weights() -> None:
    """A normalised layer starts at E tanh²(z/2) = 0.174, whatever its weights."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten())
    attachment = atomsep.attach(model, "1", weight=1.0)
    z = torch.linspace(-8, 8, 4001, dtype=torch.float64)
    density = torch.exp(-z.square() / 2)
    untrained = ((torch.tanh(z / 2).square() * density).sum() / density.sum()).item()
    assert untrained == pytest.approx(0.174, abs=1e-3)
    x = torch.randn(16, 1, 10, 10)
    model(x)
    stats = attachment.stats
    assert stats["charge_square"] == pytest.approx(untrained, abs=0.02)
    assert stats["occupancy"] == pytest.approx((untrained - 2 / 3) ** 2, abs=0.03)
    optimiser = torch.optim.SGD(model.parameters(), lr=1.0)
    for _ in range(60):
        optimiser.zero_grad()
        model(x)
        attachment.loss().backward()
        optimiser.step()
    assert attachment.stats["charge_square"] > 0.4
    assert attachment.stats["occupancy"] < 0.08
