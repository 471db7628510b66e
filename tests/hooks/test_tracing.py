"""Tracing, scripting and ONNX leave the loss out, or say what to do."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from small_models import batch, mlp
from torch import nn

import atomsep

pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit")


def traced(model: nn.Module) -> Any:
    return torch.jit.trace(model, (batch(),), check_trace=False)


def graph_of(program: Any) -> str:
    """Its graph, without the numbers that torch gives to repeated compilations of a class."""
    return re.sub(r"___torch_mangle_\d+\.", "", str(program.inlined_graph))


@pytest.mark.parametrize("training", [False, True])
def test_a_traced_model_is_that_of_a_model_never_attached(training: bool) -> None:
    model, x = mlp().train(training), batch()
    plain = graph_of(traced(model))
    attachment = atomsep.attach(model, "0", mask=False)
    program = traced(model)
    assert graph_of(program) == plain
    torch.testing.assert_close(program(x), model(x))
    model.train()
    model(x)
    attachment.loss().backward()  # and the model itself goes on
    attachment.detach()
    assert graph_of(traced(model.train(training))) == plain


def test_an_attached_model_is_not_scripted() -> None:
    model = mlp()
    plain = graph_of(torch.jit.script(model))
    attachment = atomsep.attach(model, "0")
    with pytest.raises(AttributeError, match="cannot be scripted: call attachment.detach"):
        torch.jit.script(model)
    attachment.detach()
    assert graph_of(torch.jit.script(model)) == plain


def test_onnx_leaves_the_loss_out() -> None:
    """The exporter's own trace; writing the file needs the onnx package."""
    utils = pytest.importorskip("torch.onnx.utils")
    model, x = mlp().eval(), batch()
    try:
        plain, *_ = utils._model_to_graph(model, (x,))
    except Exception as error:
        pytest.skip(f"this version has another exporter: {error}")
    atomsep.attach(model, "0")
    program, *_ = utils._model_to_graph(model, (x,))
    kinds = [[node.kind() for node in graph.nodes()] for graph in (plain, program)]
    assert kinds[0] == kinds[1]
