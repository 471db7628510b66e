"""A whole training step with the loss attached, captured into a CUDA graph."""

from __future__ import annotations

import copy

import pytest
import torch
from graphs import capture
from torch import Tensor, nn

import atomsep

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="graphs need a GPU")


def network(in_place: bool) -> nn.Sequential:
    """Two convolutions; the latent is between them, overwritten or not."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(in_place), nn.Conv2d(16, 4, 3)
    ).cuda()


class Training:
    """Steps on one static batch."""

    def __init__(self, model: nn.Module, batch: Tensor) -> None:
        self.model, self.batch = model, batch
        self.attachment = atomsep.attach(model, "1", weight=0.5)
        self.optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)

    def step(self) -> Tensor:
        """One, and its atom loss."""
        task = self.model(self.batch).square().mean()
        loss = self.attachment.loss()
        (task + loss).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.detach()


@pytest.mark.parametrize("in_place", [False, True])
@torch.backends.cudnn.flags(enabled=True, deterministic=True)
def test_captured_steps_train_as_eager_ones(in_place: bool) -> None:
    """The same weights, losses and importance, bit for bit, batch after batch."""
    first = network(in_place)
    batches = torch.randn(6, 8, 3, 20, 20, generator=torch.Generator().manual_seed(1)).cuda()
    eager = Training(copy.deepcopy(first), batches[0].clone())
    replayed = Training(copy.deepcopy(first), batches[0].clone())

    for _ in range(3):
        eager.step()
    graph, loss = capture(replayed.step)
    for batch in batches:
        eager.batch.copy_(batch)
        replayed.batch.copy_(batch)
        graph.replay()
        assert torch.equal(loss, eager.step())
        assert torch.equal(replayed.attachment.importance, eager.attachment.importance)
    assert replayed.attachment.stats == eager.attachment.stats
    for one, other in zip(replayed.model.parameters(), eager.model.parameters(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.filterwarnings("ignore")  # the compiler has its own
def test_steps_compiled_into_graphs_train_as_eager_ones() -> None:
    """`torch.compile` captures the model's passes by itself; loss and importance come out right."""
    first = network(in_place=True)
    batches = torch.randn(6, 8, 3, 20, 20, generator=torch.Generator().manual_seed(1)).cuda()
    eager = Training(copy.deepcopy(first), batches[0].clone())
    compiled = copy.deepcopy(first)
    compiled.compile(mode="reduce-overhead")
    replayed = Training(compiled, batches[0].clone())
    for batch in batches:
        eager.batch.copy_(batch)
        replayed.batch.copy_(batch)
        torch.testing.assert_close(replayed.step(), eager.step(), rtol=1e-3, atol=1e-5)
        torch.testing.assert_close(
            replayed.attachment.importance, eager.attachment.importance, rtol=1e-2, atol=1e-3
        )
    stats = eager.attachment.stats
    assert replayed.attachment.stats == pytest.approx(stats, rel=1e-2, abs=1e-4)


@pytest.mark.filterwarnings("ignore")  # the compiler has its own
@pytest.mark.parametrize("early", [False, True])
def test_a_resnet_compiled_into_graphs_trains_as_an_eager_one(early: bool) -> None:
    """What each step gave is still right when later steps have overwritten the graphs' memory.

    `early` reads the importance before the loss is taken.
    """
    resnet18 = pytest.importorskip("torchvision").models.resnet18
    torch.compiler.reset()
    torch.manual_seed(0)
    first = resnet18(num_classes=10).cuda()
    batches = torch.randn(6, 16, 3, 64, 64, generator=torch.Generator().manual_seed(1)).cuda()
    y = torch.arange(16, device="cuda") % 10
    results = []
    for mode in (None, "reduce-overhead"):
        model = copy.deepcopy(first)
        run = model if mode is None else torch.compile(model, mode=mode)
        attachment = atomsep.attach(run, "layer1.1.bn2", weight=1.0)
        optimizer = torch.optim.SGD(model.parameters(), 1e-3, momentum=0.9)
        losses, importance, stats = [], [], []
        for batch in batches:
            task = nn.functional.cross_entropy(run(batch), y)
            if early:
                importance.append(attachment.importance)
            loss = task + attachment.loss()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if not early:
                importance.append(attachment.importance)
            stats.append(list(attachment.stats.values()))
            losses.append(loss.detach())
        model.eval()
        with torch.no_grad():
            for batch in batches[:3]:
                run(batch)
                importance.append(attachment.importance)
        stats.append(list(attachment.stats.values()))
        results.append((torch.stack(losses), torch.stack(importance), torch.tensor(stats)))
    eager, compiled = results
    torch.testing.assert_close(compiled[0], eager[0], rtol=2e-2, atol=1e-2)
    torch.testing.assert_close(compiled[1], eager[1], rtol=0, atol=5e-2)
    torch.testing.assert_close(compiled[2], eager[2], rtol=5e-2, atol=1e-2)
    assert (eager[1][0] - eager[1][5]).abs().max() > 0.2  # another step's would show
