"""Fabric, Accelerate and plain PyTorch: attach, add the loss; the state travels as tensors."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from by_hand import WEIGHT, plain_loss
from safetensors.torch import load_file, save_file
from small_models import mlp
from torch import Tensor, nn
from torch.nn import functional as F

import atomsep

STEPS = 10


def batches(count: int) -> list[tuple[Tensor, Tensor]]:
    random = torch.Generator().manual_seed(4)
    x = torch.randn(count, 6, 5, 3, generator=random, dtype=torch.float64)
    return list(zip(x, (x.sum((2, 3)) > 0).long(), strict=True))


def by_hand(accumulation: int) -> tuple[nn.Module, list[float]]:
    model = mlp().double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for number, (x, labels) in enumerate(batches(STEPS * accumulation)):
        latent = model[0](x)
        loss = F.cross_entropy(model[1:](latent), labels) + WEIGHT * plain_loss(latent)
        (loss / accumulation).backward()
        losses.append(loss.item())
        if (number + 1) % accumulation == 0:
            optimizer.step()
            optimizer.zero_grad()
    return model, losses


def prepare(accumulation: int) -> tuple[nn.Module, Any, atomsep.Attachment]:
    model = mlp().double()
    attachment = atomsep.attach(model, "0", weight=WEIGHT)
    return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), attachment


def in_fabric(accumulation: int) -> tuple[nn.Module, list[float]]:
    from lightning.fabric import Fabric

    fabric = Fabric(accelerator="cpu", devices=1, precision="64-true")
    model, optimizer, attachment = prepare(accumulation)
    wrapped, optimizer = fabric.setup(model, optimizer)
    losses = []
    for number, (x, labels) in enumerate(batches(STEPS * accumulation)):
        stepping = (number + 1) % accumulation == 0
        with nullcontext() if stepping else fabric.no_backward_sync(wrapped):
            loss = F.cross_entropy(wrapped(x), labels) + attachment.loss()
            fabric.backward(loss / accumulation)
        losses.append(loss.item())
        if stepping:
            optimizer.step()
            optimizer.zero_grad()
    return model, losses


def test_attaching_after_the_setup_of_fabric() -> None:
    from lightning.fabric import Fabric

    fabric = Fabric(accelerator="cpu", devices=1, precision="64-true")
    model = mlp().double()
    wrapped = fabric.setup(model)
    [(x, _)] = batches(1)
    attachment = atomsep.attach(wrapped, "0", weight=1.0)
    assert attachment.model is model
    assert attachment.layers == ["0"]
    wrapped(x)
    torch.testing.assert_close(attachment.loss(), plain_loss(model[0](x).detach()))


def in_accelerate(accumulation: int) -> tuple[nn.Module, list[float]]:
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState, GradientState

    AcceleratorState._reset_state(True)  # other tests have made one
    GradientState._reset_state()
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=accumulation)
    model, optimizer, attachment = prepare(accumulation)
    wrapped, optimizer = accelerator.prepare(model, optimizer)
    losses = []
    for x, labels in batches(STEPS * accumulation):
        with accelerator.accumulate(wrapped):
            loss = F.cross_entropy(wrapped(x), labels) + attachment.loss()
            accelerator.backward(loss)
            losses.append(loss.item())
            optimizer.step()
            optimizer.zero_grad()
    return model, losses


@pytest.mark.parametrize("accumulation", [1, 4])
@pytest.mark.parametrize("train", [in_fabric, in_accelerate])
def test_ten_steps_equal_a_loop_by_hand(train: Callable[..., Any], accumulation: int) -> None:
    model, losses = train(accumulation)
    expected, wanted = by_hand(accumulation)
    torch.testing.assert_close(dict(model.state_dict()), dict(expected.state_dict()))
    assert losses == pytest.approx(wanted)


def learned() -> tuple[nn.Module, atomsep.Attachment, Any]:
    model = mlp().double()
    criterion = atomsep.AtomLoss(charge=nn.Linear(8, 1), pairs="sampled", seed=3).double()
    attachment = atomsep.attach(model, "0", criterion, weight=WEIGHT)
    parameters = [*model.parameters(), *attachment.parameters()]
    return model, attachment, torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def train(
    model: Any,
    attachment: Any,
    optimizer: Any,
    data: list[Any],
    backward: Callable[[Tensor], None] = torch.Tensor.backward,
) -> list[float]:
    losses = []
    for x, labels in data:
        loss = F.cross_entropy(model(x), labels) + attachment.loss()
        optimizer.zero_grad()
        backward(loss)
        optimizer.step()
        losses.append(loss.item())
    return losses


def resume_in_fabric(folder: Path) -> list[float]:
    """The losses of five steps, of a checkpoint, and of five more with all states from it."""
    from lightning.fabric import Fabric

    losses = []
    for data, path in ((batches(STEPS)[:5], None), (batches(STEPS)[5:], folder / "state")):
        fabric = Fabric(accelerator="cpu", devices=1, precision="64-true")
        model, attachment, optimizer = learned()
        wrapped, optimizer = fabric.setup(model, optimizer)
        state = {"model": wrapped, "optimizer": optimizer, "attachment": attachment}
        if path is not None:
            nn.init.zeros_(attachment.criterion.charge.weight)
            fabric.load(path, state)
        losses += train(wrapped, attachment, optimizer, data, fabric.backward)
        fabric.save(folder / "state", state)
    return losses


def resume_in_accelerate(folder: Path) -> list[float]:
    """The same with Accelerate."""
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState, GradientState

    losses = []
    for data, path in ((batches(STEPS)[:5], None), (batches(STEPS)[5:], folder / "state")):
        AcceleratorState._reset_state(True)
        GradientState._reset_state()
        accelerator = Accelerator(cpu=True)
        model, attachment, optimizer = learned()
        wrapped, optimizer = accelerator.prepare(model, optimizer)
        accelerator.register_for_checkpointing(attachment)
        if path is not None:
            nn.init.zeros_(attachment.criterion.charge.weight)
            accelerator.load_state(str(path))
        losses += train(wrapped, attachment, optimizer, data, accelerator.backward)
        accelerator.save_state(str(folder / "state"))
    return losses


@pytest.mark.parametrize("resume", [resume_in_fabric, resume_in_accelerate])
def test_a_resumed_run_equals_the_unbroken_one(
    resume: Callable[[Path], list[float]], tmp_path: Path
) -> None:
    """With learned maps, momentum, and pairs that are drawn."""
    unbroken = train(*learned(), batches(STEPS))
    assert resume(tmp_path) == pytest.approx(unbroken, rel=1e-6)  # Fabric rounds outputs to float32


@pytest.mark.parametrize("form", ["torch", "safetensors"])
def test_learned_maps_and_draws_resume_from_a_file(form: str, tmp_path: Path) -> None:
    unbroken = learned()
    losses = train(*unbroken, batches(STEPS))
    model, attachment, optimizer = learned()
    train(model, attachment, optimizer, batches(STEPS)[:5])
    torch.save([model.state_dict(), optimizer.state_dict()], tmp_path / "rest")
    state = attachment.state_dict()
    (save_file if form == "safetensors" else torch.save)(state, tmp_path / "atom")

    model, attachment, optimizer = learned()
    nn.init.zeros_(attachment.criterion.charge.weight)
    for part, saved in zip((model, optimizer), torch.load(tmp_path / "rest"), strict=True):
        part.load_state_dict(saved)
    load = load_file if form == "safetensors" else torch.load
    attachment.load_state_dict(load(tmp_path / "atom"))
    resumed = train(model, attachment, optimizer, batches(STEPS)[5:])
    assert resumed == pytest.approx(losses[5:], rel=1e-13)
    states = dict(unbroken[1].state_dict()), dict(attachment.state_dict())
    torch.testing.assert_close(*states, rtol=1e-12, atol=1e-14)
