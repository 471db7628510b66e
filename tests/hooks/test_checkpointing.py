"""What a checkpoint recomputes is what its own forward did, whichever forwards came after it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from by_hand import WEIGHT, assert_same, gradients, plain_loss
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop

import atomsep
from atomsep import AtomLoss

SAMPLES, LENGTH = 5, 6


class Net(nn.Module):
    """A region that is checkpointed or not, with a dropout behind its two layers."""

    def __init__(self, nested: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(4, 6), nn.Linear(6, 6)
        self.head, self.checkpointed, self.nested = nn.Linear(6, 2), True, nested
        self.double()

    def region(self, x: Tensor, attention_mask: Tensor | None) -> Tensor:
        hidden = torch.tanh(self.call(self.first, x) if self.nested else self.first(x))
        return nn.functional.dropout(torch.sigmoid(self.second(hidden)), 0.2)

    def call(self, function: Any, *arguments: Any) -> Tensor:
        if not self.checkpointed:
            return function(*arguments)  # type: ignore[no-any-return]
        return checkpoint(function, *arguments, use_reentrant=False)  # type: ignore[no-any-return]

    def forward(self, x: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        return self.head(self.call(self.region, x, attention_mask)).square().mean()


def batches(count: int) -> list[Tensor]:
    torch.manual_seed(1)
    return list(torch.randn(count, SAMPLES, LENGTH, 4, dtype=torch.float64))


def masks(count: int) -> list[Tensor | None]:
    """Of several lengths; the second forward has none."""
    torch.manual_seed(2)
    lengths = torch.randint(2, LENGTH + 1, (count, SAMPLES, 1))
    found: list[Tensor | None] = list(torch.arange(LENGTH) < lengths)
    found[1] = None
    return found


def maps(dropout: float = 0.0) -> dict[str, nn.Module]:
    torch.manual_seed(3)
    score = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Dropout(dropout), nn.Linear(8, 1))
    return {"charge": score.double(), "position": nn.Linear(6, 3).double()}


CRITERIA: dict[str, Any] = {
    "sampled pairs": lambda: AtomLoss(pairs="sampled"),
    "sampled tokens": lambda: AtomLoss(tokens=3),
    "sampled tokens and pairs": lambda: AtomLoss.paper(tokens=3),
    "learned maps": lambda: AtomLoss(**maps(dropout=0.3)),
    "learned maps of sampled tokens": lambda: AtomLoss(tokens=3, **maps(dropout=0.3)),
}


def train(
    criterion: AtomLoss, target: Any, checkpointed: bool, forwards: int = 1, **options: Any
) -> list[Any]:
    """Losses, draws and gradients of some steps, each of so many forwards and one backward."""
    model = Net(**options).train()
    model.checkpointed = checkpointed
    attachment = atomsep.attach(model, target, criterion, weight=WEIGHT)
    inputs, seen = batches(4 * forwards), masks(4 * forwards)
    found: list[Any] = []
    torch.manual_seed(4)
    for step in range(4):
        model.zero_grad()
        criterion.zero_grad()
        total: Any = 0
        for index in range(step * forwards, (step + 1) * forwards):
            total = total + model(inputs[index], seen[index])
            loss = attachment.loss()
            found.append(loss.detach())
            total = total + loss
        total.backward()
        found.append(criterion.draws)
        found += [p.grad.clone() for p in (*model.parameters(), *criterion.parameters())]
    return found


@pytest.mark.parametrize("criterion", CRITERIA.values(), ids=CRITERIA)
@pytest.mark.parametrize("target", ["first", ["first", "second"]], ids=["one", "two"])
@pytest.mark.parametrize("forwards", [1, 2])
def test_a_checkpoint_changes_nothing(criterion: Any, target: Any, forwards: int) -> None:
    expected = train(criterion(), target, False, forwards)
    torch.testing.assert_close(train(criterion(), target, True, forwards), expected)


@pytest.mark.parametrize("criterion", CRITERIA.values(), ids=CRITERIA)
def test_nested_checkpoints_change_nothing(criterion: Any) -> None:
    expected = train(criterion(), ["first", "second"], False, 2, nested=True)
    found = train(criterion(), ["first", "second"], True, 2, nested=True)
    torch.testing.assert_close(found, expected)


def test_a_checkpoint_that_does_not_stop_early() -> None:
    expected = train(CRITERIA["learned maps of sampled tokens"](), "first", False, 2)
    with set_checkpoint_early_stop(False):
        found = train(CRITERIA["learned maps of sampled tokens"](), "first", True, 2)
    torch.testing.assert_close(found, expected)


def test_every_checkpointed_step_draws_other_pairs() -> None:
    """The example of a user whose region ends with the layer."""

    class Ending(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head = nn.Linear(4, 6), nn.Linear(6, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(checkpoint(self.body, x, use_reentrant=False).mean(1))  # type: ignore[no-any-return]

    model, x = Ending(), torch.randn(5, 6, 4)
    attachment = atomsep.attach(model, "body", AtomLoss(pairs="sampled"))
    losses = []
    for step in range(1, 6):
        task = model(x).square().mean()
        loss = attachment.loss()
        (task + loss).backward()
        assert attachment.criterion.draws == step
        losses.append(loss.item())
    assert len(set(losses)) == 5


def test_two_forwards_with_masks_and_maps_by_hand() -> None:
    """Against the plain formulas; the recomputation of one must not read the mask of the other."""
    model, (x, y), (mask, _) = Net(), batches(2), masks(2)
    learned = maps()
    model.region = lambda x, attention_mask: torch.tanh(model.first(x))  # type: ignore[method-assign]
    total: Any = 0
    for each, real in ((x, mask), (y, None)):
        latent = model.first(each)
        total = total + model.head(torch.tanh(latent)).square().mean()
        total = total + WEIGHT * plain_loss(latent, real, **learned)
    both = nn.ModuleList([model, *learned.values()])
    expected = gradients(both, total)
    attachment = atomsep.attach(model, "first", AtomLoss(**learned), weight=WEIGHT)
    total = 0
    for each, real in ((x, mask), (y, None)):
        total = total + model(each, real) + attachment.loss()
    assert_same(gradients(both, total), expected)


def test_a_batch_norm_in_a_map_sees_each_batch_once() -> None:
    class Score(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(3)
            self.norm, self.linear = nn.BatchNorm1d(6), nn.Linear(6, 1)
            self.double()

        def forward(self, latent: Tensor) -> Tensor:
            return self.linear(self.norm(latent.flatten(0, 1)).unflatten(0, latent.shape[:2]))  # type: ignore[no-any-return]

    plain, score = Score(), Score()
    expected = train(AtomLoss(charge=plain), "first", False, 2)
    torch.testing.assert_close(train(AtomLoss(charge=score), "first", True, 2), expected)
    assert score.norm.num_batches_tracked == 8
    torch.testing.assert_close(dict(score.named_buffers()), dict(plain.named_buffers()))


def test_saved_tensors_on_the_cpu() -> None:
    """Other hooks on what is saved than those of a checkpoint."""
    criterion = CRITERIA["learned maps of sampled tokens"]
    expected = train(criterion(), "first", False, 2)
    with torch.autograd.graph.save_on_cpu():
        torch.testing.assert_close(train(criterion(), "first", False, 2), expected)


# What happens between the forward and its backward

tells = pytest.mark.skipif(
    not hasattr(torch._C._autograd, "_top_saved_tensors_default_hooks"),
    reason="PyTorch before 2.8 does not tell which region is recomputed",
)


class Alike(nn.Module):
    """A region in which all that is saved has one shape, so that PyTorch cannot tell it apart."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(4, 4)
        self.double()

    def region(self, x: Tensor) -> Tensor:
        return torch.sigmoid(torch.tanh(self.layer(x)))

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(self.region, x, use_reentrant=False).square().mean()  # type: ignore[no-any-return]


@tells
@pytest.mark.parametrize("kind", ["default", "learned maps"])
@pytest.mark.parametrize("between", ["paused", "eval", "another forward in eval", "attached"])
def test_a_backward_repeats_what_its_forward_did(between: str, kind: str) -> None:
    model, [x] = Alike(), batches(1)
    criterion = AtomLoss() if kind == "default" else AtomLoss(charge=nn.Linear(4, 1).double())
    both = nn.ModuleList([model, criterion])
    task = model.region(x).square().mean()
    charge = criterion.charge
    expected = gradients(both, task + WEIGHT * plain_loss(model.layer(x), charge=charge))
    attachment = atomsep.attach(model, "layer", criterion, weight=WEIGHT)
    task = model(x)
    total = task + attachment.loss()
    if between == "paused":
        with attachment.paused():
            found = gradients(both, total)
    else:
        model.train(between == "attached")
        if between == "another forward in eval":
            model(2 * x)
        if between == "attached":
            atomsep.attach(model, "layer", AtomLoss(norm=1))
        found = gradients(both, total)
    assert_same(found, expected)


@tells
@pytest.mark.parametrize("mode", ["paused", "eval", "before attaching"])
def test_a_forward_that_was_not_read_is_not_read_by_its_backward(mode: str) -> None:
    """Saving one tensor more would shift all later ones, and all have one shape here."""
    model, [x] = Alike(), batches(1)
    expected = gradients(model, model.region(x).square().mean())
    if mode == "before attaching":
        task = model(x)
    attachment = atomsep.attach(model, "layer", weight=WEIGHT)
    if mode == "paused":
        with attachment.paused():
            task = model(x)
    elif mode == "eval":
        model.eval()
        task = model(x)
        importance = attachment.importance
        model.train()
    assert_same(gradients(model, task), expected)
    if mode == "eval":
        torch.testing.assert_close(attachment.importance, importance)


@tells
def test_regions_are_forgotten_with_their_graph() -> None:
    model, [x] = Alike(), batches(1)
    attachment = atomsep.attach(model, "layer", weight=WEIGHT)
    regions = attachment._taps[0].forwards.regions.noted
    total = model(x) + attachment.loss()
    assert len(regions) == 1
    total.backward()
    assert len(regions) == 0
