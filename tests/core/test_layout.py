"""Which axis holds the tokens: certain, or refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torchvision
from torch import Tensor, nn

import atomsep
from atomsep.core.layout import Layout
from atomsep.hooks.axes import infer_axes


class Opaque(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x


class Mixed(nn.Module):
    """Convolution and linear layers side by side, as in ConvNeXt."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.linear = nn.Conv2d(4, 4, 1), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(self.conv(x).permute(0, 2, 3, 1))


BATCH_SECOND = nn.TransformerEncoderLayer(8, 2, 8)
BATCH_FIRST = nn.TransformerEncoderLayer(8, 2, 8, batch_first=True)


@pytest.mark.parametrize(
    ("module", "dim", "axes"),
    [
        (nn.Conv1d(4, 4, 1), 3, "channels_first"),
        (nn.Conv2d(4, 4, 1), 4, "channels_first"),
        (nn.Conv2d(4, 4, 1), 3, None),  # an unbatched image
        (nn.BatchNorm2d(4), 4, "channels_first"),
        (nn.GroupNorm(2, 4), 3, "channels_first"),
        (nn.Linear(4, 4), 3, "channels_last"),
        (nn.Linear(4, 4), 4, "channels_last"),
        (nn.LayerNorm(4), 3, "channels_last"),
        (nn.Sequential(nn.Linear(4, 4), nn.Conv1d(4, 4, 1)), 3, "channels_first"),
        (nn.Sequential(nn.Conv2d(4, 4, 1), nn.ReLU()), 4, "channels_first"),
        (nn.Sequential(nn.Conv2d(4, 4, 1), nn.Flatten(2)), 3, None),
        (torchvision.models.resnet.BasicBlock(4, 4), 4, "channels_first"),
        (torchvision.models.resnet18().layer1, 4, "channels_first"),
        (BATCH_FIRST, 3, "channels_last"),
        (BATCH_SECOND, 3, "length_first"),
        (BATCH_SECOND.linear1, 3, "channels_last"),  # on its own it is certain
        (nn.ReLU(), 4, None),
        (Opaque(), 3, None),
        (Mixed(), 4, None),
        (torchvision.models.convnext.LayerNorm2d(4), 4, None),  # a subclass that permutes
    ],
)
def test_only_what_is_certain_is_inferred(module: nn.Module, dim: int, axes: str | None) -> None:
    assert infer_axes(module, module, dim) == axes


def test_a_linear_layer_inside_a_length_first_transformer_is_not_certain() -> None:
    assert infer_axes(BATCH_SECOND.linear1, BATCH_SECOND, 3) is None


def test_a_doubtful_layout_is_refused_with_shapes_and_the_argument() -> None:
    model = nn.Sequential(Opaque())
    atomsep.attach(model, "0")
    with pytest.raises(
        ValueError,
        match=r"layer '0' \(Opaque\) gives shape \(2, 5, 4\).*not certain \(.*\); pass "
        r'layout="channels_first" for',
    ):
        model(torch.zeros(2, 5, 4))


@pytest.mark.parametrize(
    ("axes", "shape", "tokens"),
    [
        ("channels_first", (2, 4, 3, 5), (2, 15, 4)),
        ("channels_first", (2, 4, 5), (2, 5, 4)),
        ("channels_first", (2, 4, 2, 3, 5), (2, 30, 4)),
        ("channels_last", (2, 3, 5, 4), (2, 15, 4)),
        ("channels_last", (2, 5, 4), (2, 5, 4)),
        ("length_first", (5, 2, 4), (2, 5, 4)),
    ],
)
def test_layouts_are_views_and_maps_come_back_in_the_tokens_shape(
    axes: Any, shape: tuple[int, ...], tokens: tuple[int, ...]
) -> None:
    x = torch.randn(shape)
    layout = Layout(axes)
    view = layout.tokens(x)
    assert view.shape == tokens
    assert view.data_ptr() == x.data_ptr()
    per_token = view[..., 0]
    channel = {"channels_first": x[:, 0], "channels_last": x[..., 0]}.get(
        axes, x[..., 0].transpose(0, 1)
    )
    assert torch.equal(layout.unflatten(per_token, shape), channel)
    assert layout.token_shape(x) == tuple(channel.shape)


@pytest.mark.parametrize("axes", ["channels_first", "channels_last"])
@pytest.mark.parametrize("change", ["transposed", "sliced", "expanded", "channels_last_memory"])
def test_gradients_reach_tensors_of_any_strides(axes: Any, change: str) -> None:
    torch.manual_seed(0)
    base = torch.randn(3, 4, 6, 5, dtype=torch.float64)
    x = {
        "transposed": base.transpose(2, 3),
        "sliced": base[:, :, 1::2, :3],
        "expanded": base[:1].expand(3, -1, -1, -1),
        "channels_last_memory": base.contiguous(memory_format=torch.channels_last),
    }[change]
    loss = atomsep.AtomLoss()
    dense = x.contiguous().requires_grad_()
    loss(Layout(axes).tokens(dense)).backward()
    strided = x.detach().requires_grad_()
    measured = loss.measure(strided, None, Layout(axes), passing="clone")
    loss.from_statistics(measured.statistics).backward()
    torch.testing.assert_close(strided.grad, dense.grad)


def test_masks_of_maps_and_of_flat_tokens() -> None:
    x, layout = torch.zeros(2, 4, 3, 5), Layout("channels_first", skip=1)
    mask = torch.rand(2, 3, 5) < 0.5
    assert torch.equal(layout.flatten_mask(mask, x), mask.flatten(1)[:, 1:])
    assert torch.equal(layout.flatten_mask(mask.flatten(1).long(), x), mask.flatten(1)[:, 1:])
    with pytest.raises(ValueError, match=r"mask has shape \(2, 4\), but .* have \(2, 3, 5\)"):
        layout.flatten_mask(torch.ones(2, 4).bool(), x)
    with pytest.raises(TypeError, match="additive mask"):
        layout.flatten_mask(torch.zeros(2, 15), x)
