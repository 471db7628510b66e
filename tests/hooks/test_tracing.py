"""Tracing, scripting and ONNX leave the loss out, or say what to do."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from small_models import batch, mlp
from torch import Tensor, nn

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


class Nested(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.block, self.head = nn.Sequential(nn.Linear(3, 8)), nn.Linear(8, 2)

    def forward(self, x: Tensor, attention_mask: Tensor | None = None) -> dict[str, Tensor]:
        return {"loss": self.head(self.block(x).relu()).sum()}


def test_a_symbolic_trace_is_that_of_a_model_never_attached() -> None:
    model, x = Nested(), batch()
    plain = str(torch.fx.symbolic_trace(model).graph)
    attachment = atomsep.attach(model, "block", add_to="loss")
    assert str(torch.fx.symbolic_trace(model).graph) == plain
    model(x)["loss"].backward()  # and the model itself goes on
    assert attachment.importance.shape == (6, 5)


def test_a_container_may_become_the_node_of_a_feature_extractor() -> None:
    from torchvision.models import resnet18
    from torchvision.models.feature_extraction import create_feature_extractor

    model, x = resnet18(num_classes=5).eval(), torch.randn(2, 3, 32, 32)
    expected = create_feature_extractor(model, ["layer1"])(x)["layer1"]
    atomsep.attach(model, "layer1.1")
    extractor = create_feature_extractor(model, ["layer1"])
    torch.testing.assert_close(extractor(x)["layer1"], expected)


def test_make_fx_traces_the_loss_too() -> None:
    from torch.fx.experimental.proxy_tensor import make_fx

    model, x = Nested(), batch()
    attachment = atomsep.attach(model, "block", weight=1.0, mask=False)
    program = make_fx(lambda x: model(x)["loss"] * 0 + attachment.loss())(x)
    torch.testing.assert_close(program(2 * x), atomsep.AtomLoss()(model.block(2 * x)))


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
