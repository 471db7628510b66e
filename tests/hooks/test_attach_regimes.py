"""Attaching gives the gradient of a forward written by hand, however the step is run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from by_hand import (
    WEIGHT,
    as_tokens,
    assert_same,
    bert,
    bert_batch,
    bert_latent_by_hand,
    gradients,
    plain_loss,
    resnet,
    resnet_by_hand,
)
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import atomsep
from atomsep.functional import form_atoms, neutrality, occupancy


def test_gradient_accumulation() -> None:
    model, batches = resnet(), torch.randn(2, 4, 3, 32, 32, dtype=torch.float64)
    total: Any = 0
    for x in batches:
        logits, latent = resnet_by_hand(model, x, "bn1")
        total = total + logits.logsumexp(1).mean() + WEIGHT * plain_loss(latent)
    expected = gradients(model, total)
    attachment = atomsep.attach(model, "bn1", weight=WEIGHT)
    model.zero_grad()
    for x in batches:
        (model(x).logsumexp(1).mean() + attachment.loss()).backward()
    assert_same({n: p.grad for n, p in model.named_parameters()}, expected)


class Checkpointed(nn.Module):
    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(3, 6), nn.Sequential(nn.Linear(6, 6), nn.ReLU(True))
        self.reentrant = reentrant

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(self.second, self.first(x), use_reentrant=self.reentrant).mean()


def test_activation_checkpointing_counts_once() -> None:
    model = Checkpointed(reentrant=False).double()
    x = torch.randn(4, 5, 3, dtype=torch.float64)
    latent = model.second[0](model.first(x))
    expected = gradients(model, F.relu(latent).mean() + WEIGHT * plain_loss(latent))
    attachment = atomsep.attach(model, "second.0", weight=WEIGHT)
    for _ in range(3):
        task = model(x)
        assert_same(gradients(model, task + attachment.loss()), expected)
    with pytest.raises(RuntimeError, match="no new forward"):
        attachment.loss()  # the recomputation is no forward of its own


def test_reentrant_checkpointing_is_refused() -> None:
    model = Checkpointed(reentrant=True).double()
    attachment = atomsep.attach(model, "second.0")
    task = model(torch.randn(4, 5, 3, dtype=torch.float64))
    with pytest.raises(RuntimeError, match="use_reentrant=False"):
        attachment.loss()
    task.backward()


def test_checkpointing_in_bert_with_another_mask_in_between() -> None:
    model, batch = bert().train(), bert_batch()
    other = {**batch, "attention_mask": torch.ones_like(batch["attention_mask"])}
    mask = batch["attention_mask"].bool()
    total: Any = 0
    for each in (batch, other):
        task, latent = bert_latent_by_hand(model, each)
        own = mask if each is batch else None
        total = total + task + WEIGHT * plain_loss(latent, own)
    expected = gradients(model, total)
    model.gradient_checkpointing_enable({"use_reentrant": False})
    attachment = atomsep.attach(model, "bert.encoder.layer.0", weight=WEIGHT)
    total = 0
    for each in (batch, other):
        total = total + model(**each).loss + attachment.loss()
    assert_same(gradients(model, total), expected)


def test_checkpointing_with_forwards_of_different_lengths() -> None:
    model, batch = bert().train(), bert_batch()
    short = {
        "input_ids": batch["input_ids"][:, :4],
        "attention_mask": torch.ones_like(batch["attention_mask"][:, :4]),
        "labels": batch["labels"],
    }
    mask = batch["attention_mask"].bool()
    total: Any = 0
    for each, own in ((batch, mask), (short, None)):
        task, latent = bert_latent_by_hand(model, each)
        total = total + task + WEIGHT * plain_loss(latent, own)
    expected = gradients(model, total)
    model.gradient_checkpointing_enable({"use_reentrant": False})
    attachment = atomsep.attach(model, "bert.encoder.layer.0", weight=WEIGHT)
    total = 0
    for each in (batch, short):
        total = total + model(**each).loss + attachment.loss()
    assert_same(gradients(model, total), expected)


def test_of_several_forwards_the_last_counts() -> None:
    model, batch = bert().train(), bert_batch()
    full = {**batch, "attention_mask": torch.ones_like(batch["attention_mask"])}
    first, _ = bert_latent_by_hand(model, full)
    second, latent = bert_latent_by_hand(model, batch)
    mask = batch["attention_mask"].bool()
    expected = gradients(model, first + second + WEIGHT * plain_loss(latent, mask))
    attachment = atomsep.attach(model, "bert.encoder.layer.0", weight=WEIGHT)
    task = model(**full).loss + model(**batch).loss
    assert_same(gradients(model, task + attachment.loss()), expected)


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.shared = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.shared(torch.tanh(self.shared(x))).square().mean()


def test_of_a_layer_that_runs_twice_the_last_run_counts() -> None:
    model, x = Twice().double(), torch.randn(4, 5, 4, dtype=torch.float64)
    latent = model.shared(torch.tanh(model.shared(x)))
    expected = gradients(model, latent.square().mean() + WEIGHT * plain_loss(latent))
    attachment = atomsep.attach(model, "shared", weight=WEIGHT, runs="last")
    for _ in range(2):
        task = model(x)
        assert_same(gradients(model, task + attachment.loss()), expected)


def test_r1_penalty_on_an_attached_critic() -> None:
    torch.manual_seed(0)
    critic = nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.LeakyReLU(0.2, inplace=True), nn.Flatten(), nn.Linear(64, 1)
    ).double()
    x = torch.randn(5, 2, 6, 6, dtype=torch.float64, requires_grad=True)

    def penalised() -> Tensor:
        score = critic(x).sum()
        [slope] = torch.autograd.grad(score, x, create_graph=True)
        return score + slope.square().sum()

    expected = gradients(critic, penalised())
    attachment = atomsep.attach(critic, "0", weight=WEIGHT, runs="last")
    for _ in range(2):
        assert_same(gradients(critic, penalised()), expected)
        tap = attachment._taps[0]
        tap.settle(tap.forwards.read())
    task = penalised()
    atom = gradients(critic, plain_loss(as_tokens(critic[0](x))).mul(WEIGHT))
    task = penalised()
    with_loss = gradients(critic, task + attachment.loss())
    for name, gradient in with_loss.items():
        torch.testing.assert_close(gradient, expected[name] + atom.get(name, 0))


def test_the_loss_itself_can_be_differentiated_twice() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh()).double()
    x = torch.randn(4, 5, 3, dtype=torch.float64, requires_grad=True)

    def curvature(loss: Callable[[], Tensor]) -> dict[str, Tensor]:
        [slope] = torch.autograd.grad(loss(), x, create_graph=True)
        return gradients(model, slope.square().sum())

    def plain() -> Tensor:
        """Distances from differences: old versions cannot differentiate cdist twice."""
        atoms = form_atoms(model[0](x))
        first, second = torch.triu_indices(4, 4, 1)
        away = (atoms.nucleus[first] - atoms.nucleus[second]).square().sum(1)
        d, r = (away + 1e-4).sqrt(), (atoms.radius[first] + atoms.radius[second]) / 2
        p, g = atoms.protons / 5, atoms.electrons / 5
        alike = p[first] * p[second] + g[first] * g[second]
        opposite = p[first] * g[second] + g[first] * p[second]
        energy = (alike / d - opposite / (d + r)).mean()
        return WEIGHT * (energy + neutrality(atoms).mean() + occupancy(atoms).mean())

    expected = curvature(plain)
    attachment = atomsep.attach(model, "0", weight=WEIGHT)

    def attached() -> Tensor:
        model(x)
        return attachment.loss()

    assert_same(curvature(attached), expected, rtol=1e-7)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_keeps_statistics_in_float32(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Flatten(), nn.Linear(40, 2))
    x = torch.randn(6, 5, 3)
    with torch.autocast("cpu", dtype=dtype):
        latent = model[0](x)
        assert latent.dtype == dtype
        expected = WEIGHT * plain_loss(latent)
    attachment = atomsep.attach(model, "0", weight=WEIGHT)
    with torch.autocast("cpu", dtype=dtype):
        task = model(x).float().logsumexp(1).mean()
        loss = attachment.loss()
    numbers = attachment._taps[0].forwards.read().taken
    assert numbers is not None
    assert numbers.table.dtype == torch.float32
    torch.testing.assert_close(loss, expected)
    (task + loss).backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("fullgraph", [False, True])
def test_compiled_models(backend: str, fullgraph: bool) -> None:
    torch.compiler.reset()
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(True), nn.Flatten(), nn.Linear(64, 2)
    ).double()
    x = torch.randn(3, 2, 6, 6, dtype=torch.float64)
    latent = model[1](model[0](x))
    task = model[3:](F.relu(latent)).logsumexp(1).mean()
    expected = gradients(model, task + WEIGHT * plain_loss(as_tokens(latent)))
    compiled = torch.compile(model, backend=backend, fullgraph=fullgraph)
    attachment = atomsep.attach(compiled, "1", weight=WEIGHT)
    frames = torch._dynamo.utils.counters["frames"]
    for step in range(3):
        attachment.weight = WEIGHT + step  # the graph must not depend on it
        logits = compiled(x)
        attachment.weight = WEIGHT
        actual = gradients(model, logits.logsumexp(1).mean() + attachment.loss())
        assert_same(actual, expected)
        if step == 0:
            compiled_frames = frames["total"]
    assert frames["total"] == compiled_frames, "recompiled after the first step"
    attachment.detach()
    model.eval()
    compiled(x)


def test_compiled_bert_with_padding() -> None:
    torch.compiler.reset()
    model, batch = bert().train(), bert_batch()
    task, latent = bert_latent_by_hand(model, batch)
    mask = batch["attention_mask"].bool()
    expected = gradients(model, task + WEIGHT * plain_loss(latent, mask))
    attachment = atomsep.attach(model, "bert.encoder.layer.0", weight=WEIGHT)
    compiled = torch.compile(model, backend="aot_eager")
    for _ in range(2):
        assert_same(gradients(model, compiled(**batch).loss + attachment.loss()), expected)


def test_several_layers_give_the_mean_of_their_losses() -> None:
    model, x = resnet(), torch.randn(4, 3, 32, 32, dtype=torch.float64)
    logits, first = resnet_by_hand(model, x, "layer1.0.bn2")
    _, second = resnet_by_hand(model, x, "layer1.1.bn2")
    loss = logits.logsumexp(1).mean() + WEIGHT * (plain_loss(first) + plain_loss(second)) / 2
    expected = gradients(model, loss)
    attachment = atomsep.attach(model, "layer1.*.bn2", weight=WEIGHT)
    assert attachment.layers == ["layer1.0.bn2", "layer1.1.bn2"]
    task = model(x).logsumexp(1).mean()
    assert_same(gradients(model, task + attachment.loss()), expected)
    assert list(attachment.importance) == attachment.layers
    assert list(attachment.stats) == attachment.layers


def test_the_paper_setting_samples_tokens_of_an_overwritten_layer() -> None:
    """With as many pairs and tokens as there are, the sampled loss is of the true output."""
    model, x = resnet(), torch.randn(2, 3, 32, 32, dtype=torch.float64)
    logits, latent = resnet_by_hand(model, x, "bn1")
    criterion = atomsep.AtomLoss.paper(tokens=40, seed=3)
    expected_loss = criterion(latent)
    expected = gradients(model, logits.logsumexp(1).mean() + WEIGHT * expected_loss)
    attachment = atomsep.attach(
        model, "bn1", atomsep.AtomLoss.paper(tokens=40, seed=3), weight=WEIGHT
    )
    task = model(x).logsumexp(1).mean()
    assert_same(gradients(model, task + attachment.loss()), expected)
