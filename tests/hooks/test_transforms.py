"""Attached models under torch.func, forward-mode AD and torch.export, and while paused."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from small_models import batch, hooks_of, mlp
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.func import functional_call, grad, jvp, vmap

import atomsep


@pytest.fixture(autouse=True)
def _empty_cache() -> Iterator[None]:
    yield
    torch.compiler.reset()


def network() -> nn.Sequential:
    """The layer's consumer writes in place."""
    torch.manual_seed(0)
    layers = nn.Linear(3, 8), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(40, 2)
    return nn.Sequential(*layers).double()


X = batch().double()
Parameters = dict[str, Tensor]


def objective(model: nn.Module, attachment: Any) -> Callable[[Parameters, Tensor], Tensor]:
    """Task and atom loss as a function of the parameters."""

    def run(parameters: Parameters, x: Tensor) -> Tensor:
        task = functional_call(model, parameters, (x,)).logsumexp(1).mean()
        return task + attachment.loss()  # type: ignore[no-any-return]

    return run


def by_autograd(model: nn.Module, attachment: Any, x: Tensor = X) -> Parameters:
    total = model(x).logsumexp(1).mean() + attachment.loss()
    parameters = dict(model.named_parameters())
    return dict(zip(parameters, torch.autograd.grad(total, list(parameters.values())), strict=True))


def detached(model: nn.Module) -> Parameters:
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


# torch.func and forward-mode AD


def test_grad_gives_what_autograd_gives() -> None:
    model = network()
    attachment = atomsep.attach(model, "0", weight=0.7)
    expected = by_autograd(model, attachment)
    for _ in range(2):
        found = grad(objective(model, attachment))(detached(model), X)
        torch.testing.assert_close(found, expected)
        torch.testing.assert_close(by_autograd(model, attachment), expected)


def test_forward_mode_gives_the_slope_along_a_direction() -> None:
    model = network()
    attachment = atomsep.attach(model, "0", weight=0.7)
    gradient = by_autograd(model, attachment)
    direction = {name: torch.randn_like(value) for name, value in gradient.items()}
    expected = sum((gradient[name] * direction[name]).sum() for name in gradient)
    run, parameters = objective(model, attachment), detached(model)
    _, slope = jvp(lambda p: run(p, X), (parameters,), (direction,))
    torch.testing.assert_close(slope, expected)
    with forward_ad.dual_level():
        dual = {name: forward_ad.make_dual(parameters[name], direction[name]) for name in gradient}
        slope = forward_ad.unpack_dual(run(dual, X)).tangent
    torch.testing.assert_close(slope, expected)
    torch.testing.assert_close(by_autograd(model, attachment), gradient)


def test_vmap_over_batches() -> None:
    model = network()
    attachment = atomsep.attach(model, "0", weight=0.7)
    batches = torch.stack([X, 2 * X, X - 1])
    found = vmap(grad(objective(model, attachment)), (None, 0))(detached(model), batches)
    for index, x in enumerate(batches):
        each = {name: value[index] for name, value in found.items()}
        torch.testing.assert_close(each, by_autograd(model, attachment, x))


ASK = {
    "loss": lambda attachment: attachment.loss(),
    "importance": lambda attachment: attachment.importance,
    "stats": lambda attachment: attachment.stats,
}


@pytest.mark.parametrize("ask", ASK.values(), ids=ASK)
@pytest.mark.parametrize("mode", ["loss taken", "loss not taken", "eval", "dual"])
def test_nothing_outlives_a_transform(mode: str, ask: Callable[[Any], object]) -> None:
    model = network()
    attachment = atomsep.attach(model, "0")

    def run(parameters: Parameters, x: Tensor) -> Tensor:
        task = functional_call(model, parameters, (x,)).sum()
        return task + attachment.loss() if mode == "loss taken" else task

    model.train(mode != "eval")
    parameters = detached(model)
    if mode == "dual":
        with forward_ad.dual_level():
            first = "0.weight"
            parameters[first] = forward_ad.make_dual(parameters[first], parameters[first])
            run(parameters, X)
    else:
        grad(run)(parameters, X)
    with pytest.raises(RuntimeError, match=r"layer '0' ran inside a torch.func transform"):
        ask(attachment)
    held = attachment._taps[0].forwards.read()
    assert held.charge is held.taken is held.handed_on is None
    model.train()
    by_autograd(model, attachment)
    assert attachment.importance.shape == (6, 5)
    assert attachment.stats


def test_a_loss_belongs_to_the_innermost_transform() -> None:
    """Outside of it, but still inside another one, it would be wrong."""
    model = network()
    attachment = atomsep.attach(model, "0")

    def inner(parameters: Parameters, x: Tensor) -> Tensor:
        return functional_call(model, parameters, (x,)).sum()

    def outer(parameters: Parameters, x: Tensor) -> Tensor:
        slopes = grad(inner)(parameters, x)
        with pytest.raises(RuntimeError, match="call loss.. inside the transformed function"):
            attachment.loss()
        return slopes["0.weight"].sum()

    grad(outer)(detached(model), X)


def test_a_forward_outside_and_its_loss_inside_a_transform() -> None:
    model = network()
    attachment = atomsep.attach(model, "0", weight=1.0)
    model(X)
    slope = grad(lambda factor: factor * attachment.loss())(torch.tensor(2.0).double())
    model(X)
    torch.testing.assert_close(slope, attachment.loss().detach())


# torch.export


def calls(program: Any) -> list[str]:
    return [str(node.target) for node in program.graph.nodes if node.op != "placeholder"]


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("pausing", [False, True])
def test_an_exported_program_is_the_model_s_own(
    strict: bool, training: bool, pausing: bool
) -> None:
    if strict and not pausing and not hasattr(torch.compiler, "is_exporting"):
        pytest.skip("hooks cannot tell strict export from torch.compile in this version: pause")
    model, x = mlp().train(training), batch()
    plain = torch.export.export(model, (x,), strict=strict)
    attachment = atomsep.attach(model, "0")
    with attachment.paused() if pausing else nullcontext():
        program = torch.export.export(model, (x,), strict=strict)
    assert calls(program) == calls(plain)
    assert list(program.state_dict) == list(plain.state_dict)
    for ask in ASK.values():
        with pytest.raises(RuntimeError, match="has not run"):
            ask(attachment)
    torch.testing.assert_close(program.module()(x), model(x))
    model.train()
    model(x)
    attachment.loss().backward()
    assert type(attachment.importance) is Tensor


def test_strict_export_leaves_no_fake_tensor_behind() -> None:
    """In PyTorch 2.6, where hooks run in it."""
    model = mlp().eval()
    attachment = atomsep.attach(model, "0")
    torch.export.export(model, (batch(),), strict=True)
    for ask in ASK.values():
        with pytest.raises(RuntimeError, match="has not run"):
            ask(attachment)


# Pausing


def test_paused_hooks_do_nothing() -> None:
    model, x = network(), X
    asked: list[int] = []
    attachment = atomsep.attach(model, "0", mask=lambda args, kwargs: asked.append(1))
    outer, inner = attachment.paused(), attachment.paused()
    with outer:
        with inner:
            model(x)
        model(x)  # the outer pause goes on
    assert not asked
    for ask in ASK.values():
        with pytest.raises(RuntimeError, match="has not run"):
            ask(attachment)
    model(x)
    assert len(asked) == 1
    expected = attachment.importance
    with attachment.paused():
        model(2 * x)
        attachment.loss()  # of the forward before
        model.eval()(2 * x)
    torch.testing.assert_close(attachment.importance, expected)


def test_a_pause_ends_with_an_exception() -> None:
    model = network()
    attachment = atomsep.attach(model, "0")

    def fail() -> None:
        with attachment.paused():
            raise ArithmeticError

    with pytest.raises(ArithmeticError):
        fail()
    model(X)
    attachment.loss()


def test_a_copy_of_a_paused_model_is_not_paused() -> None:
    model = network()
    attachment = atomsep.attach(model, "0")
    with attachment.paused():
        twin = copy.deepcopy(model)
        twin(X)
        [other] = atomsep.attachments(twin)
        other.loss()
        model(X)
        with pytest.raises(RuntimeError, match="has not run"):
            attachment.loss()
        attachment.detach()
    assert hooks_of(model) == 0
