"""Layouts while compiling, where no graph can be read: right or refused, and no recompilation."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounter

import atomsep

# dynamo looks at the gradient of what one layer hands to the next, which is compiled
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")


@pytest.fixture(autouse=True)
def _empty_cache() -> Iterator[None]:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


class Tokens(nn.Module):
    """A vision transformer without attention; `lengthwise` turns it round inside."""

    def __init__(self, lengthwise: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.lengthwise = lengthwise
        self.embed = nn.Conv2d(3, 6, 4, 4)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, 6))
        self.block = nn.Linear(6, 6)
        self.activation = nn.Tanh()

    def forward(self, images: Tensor) -> Tensor:
        x = self.embed(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls_token.expand(len(x), -1, -1), x], 1)
        return self.activation(self.block(x.transpose(0, 1) if self.lengthwise else x))


def images(samples: int) -> Tensor:
    torch.manual_seed(samples)
    return torch.randn(samples, 3, 8, 12)


@pytest.mark.parametrize("lengthwise", [False, True])
def test_a_model_that_is_compiled_from_the_start(lengthwise: bool) -> None:
    model, eager = Tokens(lengthwise), Tokens(lengthwise)
    expected = atomsep.attach(eager, "block", weight=1.0)
    attachment = atomsep.attach(model, "block", weight=1.0)
    counter = CompileCounter()
    run = torch.compile(model, backend=counter, fullgraph=True)
    for _ in range(3):
        run(images(4))
        eager(images(4))
        torch.testing.assert_close(attachment.loss(), expected.loss())
        assert attachment.importance.shape == (4, 6)  # the class token is left out
        torch.testing.assert_close(attachment.importance, expected.importance)
    assert counter.frame_count == 1
    axes = "length_first (L, M, C)" if lengthwise else "channels_last (M, L, C)"
    assert f"block: {axes} without the first token, while compiling" in repr(attachment)


@pytest.mark.parametrize("fullgraph", [True, False])
def test_a_layer_that_mixes_tokens_is_refused(fullgraph: bool) -> None:
    """With breaks in the graph, the model then runs without compiling, and its graph tells."""

    class Mixing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.mix = nn.LayerNorm(4), nn.Linear(5, 5)

        def forward(self, x: Tensor) -> Tensor:
            return self.mix(self.norm(x).mT).mT  # type: ignore[no-any-return]

    model = Mixing()
    atomsep.attach(model, "mix")
    with pytest.raises(
        Exception, match="it may mix tokens" if fullgraph else "fed by a layer norm"
    ):
        torch.compile(model, backend="eager", fullgraph=fullgraph)(torch.randn(3, 5, 4))


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.block = nn.Embedding(9, 6), nn.Linear(6, 6)

    def forward(self, ids: Tensor) -> Tensor:
        return self.block(self.embed(ids)).tanh()  # type: ignore[no-any-return]


@pytest.mark.parametrize("whole", [True, False])
def test_other_sizes_compile_no_more_than_with_a_given_layout(whole: bool) -> None:
    frames = []
    for options in ({"layout": "channels_last", "skip_tokens": 0}, {}):
        torch.compiler.reset()
        model, counter = Words(), CompileCounter()
        attachment = atomsep.attach(model, "block", **options)  # type: ignore[arg-type]
        if whole:
            run = torch.compile(model, backend=counter)
        else:
            model.block.compile(backend=counter)
            run = model
        for shape in ((4, 5), (4, 7), (4, 9)):
            run(torch.ones(shape).long()).sum().backward()
            attachment.loss()
            assert attachment.importance.shape == shape
        frames.append(counter.frame_count)
    assert frames[0] == frames[1]


def test_what_an_uncompiled_forward_decided_counts() -> None:
    model = Tokens()
    attachment = atomsep.attach(model, "activation")
    run = torch.compile(model, backend="eager", fullgraph=True)
    with pytest.raises(Exception, match="an uncompiled forward pass in training"):
        run(images(4))
    model(images(4))
    expected = attachment.loss()
    run(images(4))
    torch.testing.assert_close(attachment.loss(), expected)
    assert attachment.importance.shape == (4, 6)


def test_a_compiled_part_stops_the_walk() -> None:
    model = Tokens()
    model.block.compile(backend="aot_eager")
    model(images(4))
    atomsep.attach(model, "activation")
    with pytest.raises(ValueError, match="graph of compiled code cannot be read; run one uncom"):
        model(images(4))
