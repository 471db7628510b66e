"""Layers of one model on different devices."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode

import atomsep
from atomsep.hooks.losses import mean_of


@pytest.mark.skipif(torch.cuda.device_count() == 1, reason="a second GPU cannot be faked")
def test_the_mean_of_losses_on_different_devices() -> None:
    """Fake tensors have the rules of real devices: arithmetic across devices fails."""
    with FakeTensorMode():
        losses = [torch.zeros((), device=f"cuda:{index}") for index in (0, 1)]
        with pytest.raises(RuntimeError, match="device"):
            torch.stack(losses)
        mean = mean_of(losses)
        assert mean.device == torch.device("cuda:1")
        assert mean.shape == ()


def test_the_mean_is_exact() -> None:
    losses = [torch.tensor(value, requires_grad=True) for value in (1.0, 2.0, 6.0)]
    mean = mean_of(losses)
    mean.backward()
    assert mean.item() == 3
    assert [loss.grad for loss in losses] == [1 / 3] * 3
    assert mean_of(losses[:1]) is losses[0]


class Split(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(3, 6), nn.Linear(6, 8)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x.to(self.first.weight.device)).tanh()
        return self.second(hidden.to(self.second.weight.device))


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_a_model_split_over_two_gpus_trains_as_on_one() -> None:
    one, two = Split().cuda(), Split().cuda()
    two.second.to("cuda:1")
    attached = [atomsep.attach(model, ["first", "second"], weight=1.0) for model in (one, two)]
    for step in range(40):
        x = torch.randn(4, 5, 3, generator=torch.Generator().manual_seed(step))
        for model, attachment in zip((one, two), attached, strict=True):
            loss = model(x).square().mean() + attachment.loss()
            loss.backward()
            assert loss.device == model.second.weight.device
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter -= 0.01 * parameter.grad
                    parameter.grad = None
        for mine, theirs in zip(one.parameters(), two.parameters(), strict=True):
            torch.testing.assert_close(mine.cpu(), theirs.cpu())
    assert all(tap.watch.looks >= 8 for tap in attached[1]._taps)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_the_watch_waits_for_the_device_of_the_loss() -> None:
    """The first GPU, which is the current one, has nothing to do and would be ready at once."""
    model = Split().to("cuda:1")
    attachment = atomsep.attach(model, "first")
    [tap] = attachment._taps
    with torch.cuda.device(1):
        torch.cuda._sleep(10**9)
    model(torch.full((4, 5, 3), torch.nan))
    attachment.loss()
    assert tap.watch.waiting is not None
    event = tap.watch.waiting[1]
    assert event is not None
    assert not event.query()
    torch.cuda.synchronize(1)
    model(torch.full((4, 5, 3), torch.nan))
    with pytest.warns(atomsep.AtomWarning, match="is nan"):
        attachment.loss()
