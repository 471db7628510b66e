"""Witnesses of a layout: what each says, when they agree, and what is refused."""

from __future__ import annotations

import copy
import pickle
import threading

import pytest
import torch
from small_models import Net, decided, hooks_of
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import atomsep


def conv_tanh() -> Net:
    torch.manual_seed(0)
    return Net(nn.Conv2d(3, 6, 1), nn.Tanh())


IMAGES = torch.randn(2, 3, 4, 5)


def test_what_was_decided_is_printed_with_its_reasons() -> None:
    model = conv_tanh()
    attachment = atomsep.attach(model, "layer")
    assert decided(attachment) == "decided in the first forward"
    model(IMAGES)
    assert decided(attachment) == (
        "channels_first (M, C, H, W), by its graph (a convolution), the number of samples"
    )
    other = atomsep.attach(model, "before")
    model(IMAGES)
    reasons = "its type, its graph (a convolution), its weights, the number of samples"
    assert repr(other).endswith(f"before: channels_first (M, C, H, W), by {reasons}")


# Without a graph


def test_an_evaluation_before_training_waits_for_the_graph() -> None:
    model = conv_tanh().eval()
    attachment = atomsep.attach(model, "layer")
    with torch.no_grad():
        model(IMAGES)
    with pytest.raises(RuntimeError, match=r"has no layout yet: .*without a graph, only the types"):
        _ = attachment.importance
    model.train()(IMAGES)
    attachment.loss()
    expected = attachment.importance
    with torch.no_grad():
        model.eval()(IMAGES)
    assert torch.equal(attachment.importance, expected)
    with torch.no_grad():
        model(torch.randn(3, 3, 8, 8))  # another shape is read in the same way
    assert attachment.importance.shape == (3, 8, 8)
    assert "channels_first" in decided(attachment)


def test_an_evaluation_with_gradients_has_a_graph() -> None:
    model = conv_tanh().eval()
    attachment = atomsep.attach(model, "layer")
    model(IMAGES)
    assert attachment.importance.shape == (2, 4, 5)


def test_a_weight_with_one_axis_tells_without_a_graph() -> None:
    class RMSNorm(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(6))

        def forward(self, x: Tensor) -> Tensor:
            return self.weight * x * x.square().mean(-1, keepdim=True).rsqrt()

    model = nn.Sequential(RMSNorm())
    attachment = atomsep.attach(model, "0")
    with torch.no_grad():
        model(torch.randn(2, 5, 6))
    assert repr(attachment).endswith("(M, L, C), by its weights, the number of samples")
    other = atomsep.attach(nn.Sequential(RMSNorm()), "0")
    with torch.no_grad():
        other.model(torch.randn(6, 5, 6))  # the weight fits two axes
    with pytest.raises(RuntimeError, match="has no layout yet"):
        _ = other.importance


def test_a_frozen_trunk_is_refused_in_training() -> None:
    model = conv_tanh().requires_grad_(False)
    atomsep.attach(model, "layer")
    with pytest.raises(ValueError, match="not certain .*if gradients reach the layer"):
        model(IMAGES)


def test_reentrant_checkpointing_has_no_graph() -> None:
    class Saving(Net):
        def forward(self, x: Tensor) -> Tensor:
            return checkpoint(super().forward, x.requires_grad_(), use_reentrant=True)  # type: ignore[no-any-return]

    model = Saving(nn.Conv2d(3, 6, 1), nn.Tanh())
    attachment = atomsep.attach(model, "layer")
    model(IMAGES.clone())
    with pytest.raises(RuntimeError, match="has no layout yet"):
        attachment.loss()


# Contradictions


def test_type_and_graph_that_disagree_are_both_quoted() -> None:
    model = Net(nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 6)))
    model.layer.forward = lambda x: nn.Linear.forward(model.layer[0], x).mT  # type: ignore[method-assign, index]
    atomsep.attach(model, "layer")
    with pytest.raises(ValueError, match="not certain") as error:
        model(torch.randn(2, 6, 4))  # (2, 6, 6): the width fits both axes
    message = str(error.value)
    assert "its type says that axis 2 holds the features" in message
    assert "its graph (a matrix product) says that axis 1 holds the features" in message
    assert 'pass layout="channels_first"' in message


def test_weights_that_fit_another_axis_say_so() -> None:
    class Scaling(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(5))

        def forward(self, x: Tensor) -> Tensor:
            return x * self.weight[:, None, None]

    model = nn.Sequential(nn.Linear(4, 6), Scaling())
    atomsep.attach(model, "1")
    with pytest.raises(ValueError, match="; its weights say that axis 0 holds the features"):
        model(torch.randn(5, 7, 4))


def test_features_in_the_middle_are_refused() -> None:
    class Video(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.unflatten(0, (2, -1))

    model = Net(nn.Conv2d(3, 6, 1), Video())
    atomsep.attach(model, "layer")
    with pytest.raises(ValueError, match=r"its graph \(a convolution\) says that axis 2 holds"):
        model(torch.randn(4, 3, 5, 7))


# Copies and threads


@pytest.mark.parametrize("way", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_copies_have_their_own_input(way: object) -> None:
    model = conv_tanh()
    atomsep.attach(model, "layer")
    twin = way(model)  # type: ignore[operator]
    [attachment] = atomsep.attachments(twin)
    assert attachment._taps[0].reader.layout.input is attachment._taps[0].reader.input
    twin(IMAGES)
    assert "number of samples" in decided(attachment)
    attachment.detach()
    assert hooks_of(twin) == 0


def test_each_thread_has_its_own_input() -> None:
    """A model that waits inside its forward for another thread with another batch."""
    inside, finished = threading.Barrier(2), threading.Barrier(2)
    failures: list[BaseException] = []

    class Waiting(Net):
        def forward(self, x: Tensor) -> Tensor:
            inside.wait(60)
            out = super().forward(x)
            finished.wait(60)
            return out

    model = Waiting(nn.Linear(4, 6), nn.LayerNorm(6))
    atomsep.attach(model, "layer")

    def run(samples: int) -> None:
        try:
            model(torch.randn(samples, 5, 4))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(samples,)) for samples in (2, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
