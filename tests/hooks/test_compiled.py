"""Compiled models: which graph runs, and whose memory its results are in."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from functorch.compile import make_boxed_func
from small_models import batch, mlp
from torch import Tensor, nn
from torch._dynamo.backends.common import aot_autograd

import atomsep

# dynamo looks at the gradient of what one compiled layer hands to the next
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")


@pytest.fixture(autouse=True)
def _empty_cache() -> Iterator[None]:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(3, 8), nn.Linear(8, 2)

    def forward(self, x: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        return self.second(self.first(x).relu_()).mean()


# Graphs of other models


def wrapped(model: nn.Module) -> Callable[..., Any]:
    return torch.compile(model, backend="aot_eager")  # type: ignore[no-any-return]


def in_place(model: nn.Module) -> Callable[..., Any]:
    model.compile(backend="aot_eager")
    return model


@torch.compile(backend="aot_eager")
def call(model: nn.Module, x: Tensor) -> Tensor:
    return 1 * model(x)


def inside_a_function(model: nn.Module) -> Callable[..., Any]:
    return lambda x: call(model, x)


def layer_by_layer(model: nn.Module) -> Callable[..., Any]:
    for child in model.children():
        child.compile(backend="aot_eager")
    return model


compilers = pytest.mark.parametrize(
    "compiled", [wrapped, in_place, inside_a_function, layer_by_layer]
)
models = pytest.mark.parametrize(("make", "layer"), [(Model, "first"), (mlp, "0")])


@compilers
@models
def test_plain_and_attached_models_of_one_class(make: Any, layer: str, compiled: Any) -> None:
    """torch.compile shares graphs between models of a class and does not look at their hooks."""
    first, second, third = make(), make(), make()
    compiled(first)(batch())
    attachment = atomsep.attach(second, layer, weight=1.0)
    run = compiled(second)
    run(batch())
    expected = attachment.loss().detach()
    compiled(third)(batch())
    with pytest.raises(RuntimeError, match="no new forward"):
        attachment.loss()  # the third model ran, not this one
    run(batch())
    torch.testing.assert_close(attachment.loss(), expected)


@compilers
@models
def test_attaching_after_a_compiled_call(make: Any, layer: str, compiled: Any) -> None:
    model = make()
    run = compiled(model)
    before = run(batch())
    attachment = atomsep.attach(model, layer)
    torch.testing.assert_close(run(batch()), before)
    attachment.loss().backward()
    other = atomsep.attach(model, layer, atomsep.AtomLoss(norm=1))
    run(batch())
    (attachment.loss() + other.loss()).backward()
    attachment.detach()
    run(batch())
    other.loss().backward()
    other.detach()
    torch.testing.assert_close(run(batch()), before)
    assert "forward" not in vars(model.get_submodule(layer))
    assert "forward" not in vars(model)


def test_a_copy_runs_its_own_forward() -> None:
    """What attaching stores in a layer goes with the copy, not back to the original."""
    model = Model()
    atomsep.attach(model, "first")
    twin = copy.deepcopy(model)
    with torch.no_grad():
        twin.first.weight.zero_()
        twin.first.bias.zero_()
        torch.testing.assert_close(twin(batch()), twin.second.bias.mean())
        assert not torch.isclose(model(batch()), model.second.bias.mean())
    assert twin.first.forward.__self__ is twin.first
    [attachment] = atomsep.attachments(twin)
    attachment.detach()
    assert "forward" not in vars(twin.first)
    assert "forward" in vars(model.first)


def test_a_forward_of_the_user_s_own_is_left_alone() -> None:
    model = mlp()
    own = model[0].forward = lambda x: nn.functional.linear(x, 2 * model[0].weight)  # type: ignore[method-assign]
    with atomsep.attach(model, "0"):
        model(batch())
    assert model[0].forward is own


def test_a_mask_from_outside_the_compiled_layer() -> None:
    """The model notes the mask, its compiled layer reads it."""
    model, x = Model(), batch()
    mask = torch.arange(5) < torch.tensor([[1], [2], [3], [4], [5], [5]])
    model.first.compile(backend="aot_eager")
    attachment = atomsep.attach(model, "first", weight=1.0)
    for real in (mask, mask.flip(0), None):
        model(x, real)
        expected = atomsep.AtomLoss()(nn.functional.linear(x, *model.first.parameters()), real)
        torch.testing.assert_close(attachment.loss(), expected)


def test_a_whole_step_in_one_graph() -> None:
    model, x = mlp(), batch()
    attachment = atomsep.attach(model, "0", weight=1.0)
    model(x).sum()
    expected, stats = attachment.loss(), attachment.stats
    importance = attachment.importance

    @torch.compile(backend="aot_eager", fullgraph=True)
    def step(x: Tensor) -> Tensor:
        return model(x).sum() * 0 + attachment.loss()  # type: ignore[no-any-return]

    for _ in range(2):
        torch.testing.assert_close(step(x), expected)
        torch.testing.assert_close(attachment.importance, importance)
        assert attachment.stats == pytest.approx(stats)


def test_a_compiled_step_does_not_show_the_share_of_an_eager_one() -> None:
    model = mlp()
    attachment = atomsep.attach(model, "0", watch_gradients=True)
    for run, watched in ((model, True), (wrapped(model), False), (model, True)):
        (run(batch()).logsumexp(1).mean() + attachment.loss()).backward()
        assert ("gradient_share" in attachment.stats) is watched
        assert attachment.stats["training"] == 1


def test_pausing_a_compiled_model() -> None:
    model = mlp()
    run = wrapped(model)
    attachment = atomsep.attach(model, "0")
    run(batch())
    attachment.loss()
    with attachment.paused():
        run(batch())
    with pytest.raises(RuntimeError, match="no new forward"):
        attachment.loss()
    run(batch())
    attachment.loss()


# Memory of the graph


class Replaying:
    """A compiler whose graphs lose their outputs when they run again, as CUDA graphs do."""

    def __init__(self) -> None:
        self.outputs: list[Tensor] = []

    def compile(self, graph: Any, inputs: list[Any]) -> Any:
        def run(*arguments: Any) -> Any:
            for output in self.outputs:
                output.detach().fill_(torch.nan)
            given = {a.untyped_storage().data_ptr() for a in arguments if isinstance(a, Tensor)}
            outputs = graph(*arguments)
            self.outputs = [
                output
                for output in outputs
                if isinstance(output, Tensor)
                and output.is_floating_point()
                and output.untyped_storage().data_ptr() not in given
            ]
            return outputs

        return make_boxed_func(run)

    def backend(self) -> Any:
        return aot_autograd(fw_compiler=self.compile, bw_compiler=lambda g, _: make_boxed_func(g))


def train(
    model: nn.Module, run: Callable[[Tensor], Tensor], early: str
) -> tuple[list[Tensor], list[Tensor], list[dict[str, float]], list[Tensor]]:
    """Steps on several batches: what each one gives, and the weights in the end."""
    attachment = atomsep.attach(model, "0", weight=1.0)
    losses, importances, stats = [], [], []
    for step in range(4):
        x = batch() * (step + 1)
        task = run(x).logsumexp(1).mean()
        with torch.no_grad():
            if early == "importance":
                importances.append(attachment.importance)
            elif early == "stats":
                stats.append(attachment.stats)
        loss = attachment.loss()
        (task + loss).backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 0.1 * parameter.grad  # type: ignore[operator]
                parameter.grad = None
        if early != "importance":
            importances.append(attachment.importance)
        if early != "stats":
            stats.append(attachment.stats)
        losses.append(loss)
    model.eval()
    for step in range(3):
        run(batch() * step)
        importances.append(attachment.importance)
    stats.append(attachment.stats)
    return losses, importances, stats, list(model.parameters())


@pytest.mark.parametrize("early", ["", "importance", "stats"])
def test_nothing_is_read_from_the_memory_of_an_earlier_step(early: str) -> None:
    """What a compiled step gave is right after later steps have overwritten its outputs."""
    eager, model = mlp(), mlp()
    run = torch.compile(model, backend=Replaying().backend())
    torch.testing.assert_close(train(model, run, early), train(eager, eager, early))


def test_nothing_held_after_the_loss_is_memory_of_the_graph() -> None:
    model, replaying = mlp(), Replaying()
    attachment = atomsep.attach(model, "0")
    torch.compile(model, backend=replaying.backend())(batch())
    attachment.loss()
    memory = {output.untyped_storage().data_ptr() for output in replaying.outputs}
    assert memory
    [tap] = attachment._taps
    held = tap.forwards.read()
    assert held.charge is not None
    assert held.taken is not None
    for tensor in (held.charge, held.taken.table, held.taken.count):
        assert tensor.untyped_storage().data_ptr() not in memory
    left = tap.forwards.compiled
    assert left.statistics is left.taken is left.charge is None
