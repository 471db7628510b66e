"""What an attachment gives, and what it leaves behind."""

from __future__ import annotations

import copy
import io
import math
import pickle
from typing import Any

import pytest
import torch
from small_models import batch, hooks_of, mlp
from torch import Tensor, nn

import atomsep
from atomsep import AtomLoss
from atomsep.functional import atomic_distance, form_atoms, neutrality, occupancy, pair_energy

# What it gives


def test_importance_is_the_charge_in_the_shape_of_the_tokens() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU())
    attachment = atomsep.attach(model, "0")
    x = torch.randn(2, 3, 8, 10)
    model(x)
    latent = model[0](x)  # runs the hook too, on the same input
    expected = torch.tanh(latent[:, 0] / 2)
    assert attachment.importance.shape == (2, 6, 8)
    assert not attachment.importance.requires_grad
    torch.testing.assert_close(attachment.importance, expected.detach())


@pytest.mark.parametrize("mode", ["eval", "no_grad"])
def test_without_training_there_is_importance_only(mode: str) -> None:
    model, x = mlp(), batch()
    attachment = atomsep.attach(model, "0")
    expected = torch.tanh(nn.functional.linear(x, model[0].weight, model[0].bias)[..., 0] / 2)
    if mode == "eval":
        model.eval()
        out = model(x)
    else:
        with torch.no_grad():
            out = model(x)
    assert out.requires_grad is (mode == "eval")
    torch.testing.assert_close(attachment.importance, expected.detach())
    with pytest.raises(RuntimeError, match="eval mode" if mode == "eval" else "no_grad"):
        attachment.loss()


def test_a_validation_pass_leaves_the_training_loss_alone() -> None:
    model, x = mlp(), batch()
    attachment = atomsep.attach(model, "0", weight=1.0)
    model(x)
    expected = attachment.loss()
    model(x)
    model.eval()
    model(2 * x)
    model.train()
    torch.testing.assert_close(attachment.loss(), expected)


def test_a_frozen_batch_norm_in_a_training_model_still_counts() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU())
    attachment = atomsep.attach(model, "1")
    model.train()
    model[1].eval()
    model(torch.randn(3, 3, 8, 8))
    assert attachment.loss().requires_grad


def adjusted_r2(charge: Tensor) -> Tensor:
    """Of a regression of the charges on one indicator per position, by least squares."""
    samples, positions = charge.shape
    design = torch.eye(positions).repeat(samples, 1).to(charge)
    flat = charge.flatten()
    rest = flat - design @ torch.linalg.lstsq(design, flat.unsqueeze(1)).solution.squeeze(1)
    tokens = samples * positions
    return 1 - (rest.square().sum() / (tokens - positions)) / flat.var()


@pytest.mark.parametrize("scale", ["mean", "sum"])
def test_stats_are_the_parts_of_the_loss(scale: Any) -> None:
    model, x = mlp(), batch()
    criterion = AtomLoss(scale=scale, neutrality=0.7, occupancy=0.2, energy=0.5)
    attachment = atomsep.attach(model, "0", criterion, weight=0.5)
    model(x)
    stats, loss = attachment.stats, attachment.loss()
    atoms = form_atoms(nn.functional.linear(x, model[0].weight, model[0].bias))
    pairs = 6 * 5
    expected = {
        "energy": pair_energy(atoms, scale=scale).sum() / pairs,
        "neutrality": neutrality(atoms, scale).mean(),
        "occupancy": occupancy(atoms, scale).mean(),
        "distance": atomic_distance(atoms).sum() / pairs,
        "radius": atoms.radius.mean(),
        "protons": (atoms.protons / 5).mean(),
        "electrons": (atoms.electrons / 5).mean(),
        "neutrons": 1 - ((atoms.protons + atoms.electrons) / 5).mean(),
        "charge_square": atoms.charge.square().mean(),
        "position_share": adjusted_r2(atoms.charge),
        "training": torch.tensor(1.0),
    }
    assert stats.keys() == expected.keys()
    for name, value in expected.items():
        assert isinstance(stats[name], float)
        assert stats[name] == pytest.approx(value.item(), rel=1e-4), name
    total = 0.5 * stats["energy"] + 0.7 * stats["neutrality"] + 0.2 * stats["occupancy"]
    assert loss.item() == pytest.approx(0.5 * total, rel=1e-4)
    assert attachment.stats == stats  # still there after the loss was taken


def test_the_weight_can_be_scheduled() -> None:
    model, x = mlp(), batch()
    attachment = atomsep.attach(model, "0", weight=1.0)
    values = {}
    for weight in (1.0, 0.25, 0.0):
        attachment.weight = weight
        model(x)
        values[weight] = attachment.loss().item()
    assert values[0.25] == pytest.approx(0.25 * values[1.0])
    assert values[0.0] == 0


@pytest.mark.parametrize("weight", [-1.0, math.nan, math.inf])
def test_a_weight_that_is_none_is_refused(weight: float) -> None:
    with pytest.raises(ValueError, match="weight must be a finite number of at least 0"):
        atomsep.attach(mlp(), "0", weight=weight)
    attachment = atomsep.attach(mlp(), "0")
    with pytest.raises(ValueError, match="weight"):
        attachment.weight = weight
    assert attachment.weight == 0.1


def test_a_batch_of_one_has_no_pairs_but_a_graph() -> None:
    model = mlp()
    attachment = atomsep.attach(model, "0", AtomLoss(neutrality=0, occupancy=0))
    model(batch(1))
    with pytest.warns(atomsep.AtomWarning, match="'0' got a batch of one sample: the energy"):
        loss = attachment.loss()
    assert loss.item() == 0
    loss.backward()
    assert model[0].weight.grad.abs().sum() == 0


# What it leaves behind


def test_the_state_dict_is_unchanged_by_attaching_and_detaching() -> None:
    model = mlp()
    before = copy.deepcopy(model.state_dict())
    criterion = AtomLoss(charge=nn.Linear(8, 1))
    attachment = atomsep.attach(model, "0", criterion)
    model(batch())
    attachment.loss().backward()
    during = model.state_dict()
    attachment.detach()
    for state in (during, model.state_dict()):
        assert state.keys() == before.keys()
        assert all(torch.equal(state[key], before[key]) for key in before)
    assert hooks_of(model) == 0


def test_learned_maps_save_and_load() -> None:
    torch.manual_seed(0)
    model, x = mlp(), batch()
    attachment = atomsep.attach(model, "0", AtomLoss(charge=nn.Linear(8, 1)))
    other = atomsep.attach(model, "0", AtomLoss(charge=nn.Linear(8, 1)))
    model(x)
    assert not torch.equal(attachment.importance, other.importance)
    file = io.BytesIO()
    torch.save(attachment.state_dict(), file)
    other.load_state_dict(torch.load(io.BytesIO(file.getvalue())))
    model(x)
    torch.testing.assert_close(attachment.importance, other.importance)


@pytest.mark.parametrize("way", ["deepcopy", "pickle", "torch.save"])
def test_copies_of_the_model_are_independent(way: str) -> None:
    model, x = mlp(), batch()
    attachment = atomsep.attach(model, "0", weight=1.0)
    model(x)
    if way == "deepcopy":
        twin = copy.deepcopy(model)
    elif way == "pickle":
        twin = pickle.loads(pickle.dumps(model))
    else:
        file = io.BytesIO()
        torch.save(model, file)
        twin = torch.load(io.BytesIO(file.getvalue()), weights_only=False)
    [copied] = atomsep.attachments(twin)
    assert copied is not attachment
    assert copied.criterion is not attachment.criterion
    with pytest.raises(RuntimeError, match="has not run"):
        copied.loss()
    twin(2 * x)
    assert copied.loss().item() != pytest.approx(attachment.loss().item())
    copied.detach()
    assert hooks_of(twin) == 0
    assert hooks_of(model) > 0


def test_no_hook_survives_an_exception_inside_the_block() -> None:
    class Broken(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(3, 4)

        def forward(self, x: Tensor, attention_mask: Tensor | None = None) -> Tensor:
            self.linear(x)
            raise ArithmeticError("broken")

    model = Broken()

    def run() -> None:
        with atomsep.attach(model, "linear"):
            assert hooks_of(model) > 0
            model(batch())

    with pytest.raises(ArithmeticError):
        run()
    assert hooks_of(model) == 0


def test_no_hook_is_left_where_attaching_fails() -> None:
    model = mlp()
    with pytest.raises(ValueError, match="'nowhere' matches nothing"):
        atomsep.attach(model, ["0", "nowhere"])
    with pytest.raises(ValueError, match="mask='padding'"):
        atomsep.attach(model, "0", mask="padding")
    assert hooks_of(model) == 0


def test_detaching_drops_what_was_held() -> None:
    model = mlp()
    attachment = atomsep.attach(model, "0")
    model(batch())
    attachment.detach()
    attachment.detach()  # twice does no harm
    model(batch())
    with pytest.raises(RuntimeError, match="detached"):
        attachment.loss()
    with pytest.raises(RuntimeError, match="was detached"):
        _ = attachment.importance
    assert "detached" in repr(attachment)


def test_two_attachments_on_one_layer_add_up() -> None:
    model, x = mlp(), batch()
    first = atomsep.attach(model, "0", weight=1.0)
    second = atomsep.attach(model, "0", AtomLoss(norm=1), weight=1.0)
    latent = nn.functional.linear(x, model[0].weight, model[0].bias)
    expected = torch.autograd.grad(AtomLoss()(latent) + AtomLoss(norm=1)(latent), model[0].weight)
    for _ in range(2):
        model(x)
        actual = torch.autograd.grad(first.loss() + second.loss(), model[0].weight)
        torch.testing.assert_close(actual, expected)


def test_the_global_random_state_is_untouched() -> None:
    model, x = mlp(), batch()
    attachment = atomsep.attach(model, "0", AtomLoss.paper(tokens=2))
    state = torch.random.get_rng_state()
    model(x)
    attachment.loss().backward()
    assert torch.equal(state, torch.random.get_rng_state())


# Through wrappers


def test_names_work_through_wrapped_models() -> None:
    model = mlp()
    compiled = torch.compile(model, backend="aot_eager")

    def named(whole: Any, target: Any) -> list[str]:
        with atomsep.attach(whole, target) as attachment:
            return attachment.layers

    assert named(compiled, "0") == ["0"]
    assert named(compiled, "_orig_mod.0") == ["0"]

    class Wrapped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.module = model

    assert named(Wrapped(), "0") == ["0"]
    assert named(Wrapped(), "module.0") == ["0"]
    assert named(Wrapped(), model[0]) == ["0"]


def test_grad_scaler_skips_an_overflow_and_recovers() -> None:
    model, x = mlp(), batch()
    attachment = atomsep.attach(model, "0", weight=1.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**60, growth_interval=1000)
    skipped = 0
    for _ in range(60):
        before = model[0].weight.detach().clone()
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = model(x).float().logsumexp(1).mean() + attachment.loss()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        skipped += int(torch.equal(before, model[0].weight))
    assert 0 < skipped < 60
    assert not torch.equal(before, model[0].weight)
    assert all(p.isfinite().all() for p in model.parameters())
