"""Gradients of learned maps over several processes, where ranks run different layers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from rank_models import FEATURES, batch
from ranks import Ranks
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from atomsep import AtomLoss, attach


class Deep(nn.Module):
    """Three layers with tokens, of which the second may be left out."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(3, FEATURES), nn.Linear(FEATURES, FEATURES)
        self.third, self.head = nn.Linear(FEATURES, FEATURES), nn.Linear(FEATURES, 1)
        self.double()

    def forward(self, x: Tensor, skip: bool = False) -> Tensor:
        hidden = self.first(x).tanh()
        if not skip:
            hidden = self.second(hidden).tanh()
        output: Tensor = self.head(self.third(hidden).tanh())
        return output


def attached(model: nn.Module, layers: list[str], group: Any) -> list[Any]:
    """An attachment with maps of its own for each layer; all maps have the same shapes."""
    torch.manual_seed(1)
    found = []
    for layer in layers:
        maps = {"charge": nn.Linear(FEATURES, 1), "position": nn.Linear(FEATURES, 4)}
        found.append(attach(model, layer, AtomLoss(group=group, **maps).double(), missing="zero"))
    return found


def skipping(rank: int, layers: list[str], wrapped: bool) -> Any:
    """Rank 1 leaves out a layer from the second step on; one process leaves out its samples.

    Gradients of the maps and, if a wrapper averages them, of the model.
    """
    parts = [batch(3, torch.float64, each)[0] for each in range(dist.get_world_size())]
    model, alone = Deep(), Deep()
    run = model
    if wrapped:  # with a bucket for every parameter
        run = DistributedDataParallel(model, find_unused_parameters=True, bucket_cap_mb=1e-6)
    attachments = attached(model, layers, "world")
    for step in range(3):
        model.zero_grad()
        for attachment in attachments:
            attachment.criterion.zero_grad()
        output = run(parts[rank], skip=rank == 1 and step > 0)
        losses = [attachment.loss() for attachment in attachments]
        (0 * output.sum() + torch.stack(losses).sum()).backward()
    theirs = attached(alone, layers, None)
    expected = torch.zeros(())
    with_second = [alone.second(alone.first(part).tanh()) for part in parts]
    for attachment, layer in zip(theirs, layers, strict=True):
        latent = torch.cat([each for n, each in enumerate(with_second) if n != 1])
        if layer == "third":
            hidden = [each.tanh() for each in with_second]
            hidden[1] = alone.first(parts[1]).tanh()
            latent = alone.third(torch.cat(hidden))
        attachment.detach()
        expected = expected + 0.1 * attachment.criterion(latent)
    expected.backward()
    found = []
    for net, held in ((model, attachments), (alone, theirs)):
        parameters = [p for attachment in held for p in attachment.criterion.parameters()]
        parameters += [net.first.weight, net.second.weight] if wrapped else []
        found.append([parameter.grad for parameter in parameters])
    return found


@pytest.mark.parametrize("wrapped", [False, True], ids=["alone", "ddp"])
@pytest.mark.parametrize("layers", [["second"], ["second", "third"]], ids="+".join)
def test_ranks_that_run_different_layers_average_the_same_maps(
    four: Ranks, layers: list[str], wrapped: bool
) -> None:
    """Autograd reaches the maps of a layer that did not run at another time than those of others.

    Within the pass, collectives would meet those of other maps, or the wrapper's.
    """
    for answer in four.run(skipping, layers, wrapped):
        assert not isinstance(answer, str), answer
        torch.testing.assert_close(*answer, rtol=1e-10, atol=1e-12)
        assert all(gradient.abs().max() > 0 for gradient in answer[1])


def freed(rank: int) -> Any:
    """A map that no loss uses any more, and one whose gradient is asked for without a pass."""
    maps = nn.Linear(FEATURES, 1).double()
    model = Deep()
    attachment = attach(model, "second", AtomLoss(charge=maps).double())
    model(batch(3, torch.float64, rank)[0])
    [gradient] = torch.autograd.grad(attachment.loss(), maps.weight)
    return maps.weight.grad is None and gradient.isfinite().all().item()


def test_gradients_that_are_asked_for_are_those_of_the_rank(four: Ranks) -> None:
    """As with data-parallel wrappers, which act in `backward()` alone."""
    assert four.run(freed) == [True] * 4
