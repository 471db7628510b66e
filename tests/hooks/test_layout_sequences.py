"""Layouts of sequences and of blocks with other contents, against a hook written by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from by_hand import WEIGHT, assert_same, gradients, plain_loss
from torch import Tensor, nn
from torch.nn.utils import parametrizations

import atomsep

IDS = torch.randint(1, 30, (3, 7), generator=torch.Generator().manual_seed(0))
SMALL = {"vocab_size": 30, "hidden_size": 8, "num_hidden_layers": 2}
HEADS = {"num_attention_heads": 2, "intermediate_size": 16}


def llama() -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(LlamaConfig(**SMALL, **HEADS))


def xlnet() -> nn.Module:
    from transformers import XLNetConfig, XLNetModel

    sizes = {"vocab_size": 30, "d_model": 8, "n_layer": 2, "n_head": 2, "d_inner": 16}
    return XLNetModel(XLNetConfig(**sizes, dropout=0.0))


def mamba() -> nn.Module:
    from transformers import MambaConfig, MambaForCausalLM

    return MambaForCausalLM(MambaConfig(**SMALL, state_size=4))


class Recurrent(nn.Module):
    """A recurrent network that turns its input round if its LSTM wants that."""

    def __init__(self, batch_first: bool) -> None:
        super().__init__()
        self.embed = nn.Embedding(30, 6)
        self.lstm = nn.LSTM(6, 5, batch_first=batch_first, bidirectional=True)
        self.activation = nn.Tanh()

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids if self.lstm.batch_first else ids.T)
        return self.activation(self.lstm(x)[0])


class Attentive(nn.Module):
    """The encoder of fairseq and of older PyTorch code: `(L, M, C)` inside."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(30, 8)
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.attention = nn.MultiheadAttention(8, 2)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.encoder(self.embed(ids).transpose(0, 1))
        return self.attention(x, x, x)[0]  # type: ignore[no-any-return]


def run_ids(model: nn.Module) -> Tensor:
    out = model(IDS)
    out = out if isinstance(out, Tensor) else out[0]
    return out.square().mean()


@pytest.mark.filterwarnings("ignore:.*fast path is not available")
@pytest.mark.parametrize(
    ("build", "layer", "layout"),
    [
        (llama, "model.norm", "mlc"),
        (llama, "model.layers.0", "mlc"),
        (llama, "model.layers.0.mlp.act_fn", "mlc"),
        (xlnet, "layer.0", "lmc"),
        (xlnet, "layer.1.ff", "lmc"),
        (mamba, "backbone.layers.0", "mlc"),
        (mamba, "backbone.layers.1.norm", "mlc"),
        (mamba, "backbone.norm_f", "mlc"),
        (lambda: Recurrent(True), "lstm", "mlc"),
        (lambda: Recurrent(True), "activation", "mlc"),
        (lambda: Recurrent(False), "lstm", "lmc"),
        (lambda: Recurrent(False), "activation", "lmc"),
        (Attentive, "encoder.layers.0", "lmc"),
        (Attentive, "encoder.layers.1.linear1", "lmc"),
        (Attentive, "attention", "lmc"),
    ],
)
def test_sequences(build: Callable[[], nn.Module], layer: str, layout: str) -> None:
    torch.manual_seed(0)
    model = build().double().train()
    seen: list[Tensor] = []
    outputs: list[Any] = []

    def hook(module: nn.Module, args: Any, output: Any) -> None:
        seen.append(output[0] if isinstance(output, tuple) else output)
        outputs.append(output)

    handle = model.get_submodule(layer).register_forward_hook(hook)
    task = run_ids(model)
    handle.remove()
    tokens = seen[0].transpose(0, 1) if layout == "lmc" else seen[0]
    assert tokens.shape[:2] == IDS.shape
    expected = gradients(model, task + WEIGHT * plain_loss(tokens))
    attachment = atomsep.attach(model, layer, weight=WEIGHT)
    assert_same(gradients(model, run_ids(model) + attachment.loss()), expected, rtol=1e-7)
    assert attachment.importance.shape == IDS.shape
    axes = "length_first" if layout == "lmc" else "channels_last"
    entry = "output[0], " if isinstance(outputs[-1], tuple) else ""
    assert f"  {layer}: {entry}{axes} (" in repr(attachment)


class Folded(nn.Module):
    """Windows of a sequence in the place of samples, as in Swin's attention."""

    def __init__(self) -> None:
        super().__init__()
        self.mix, self.activation = nn.Linear(4, 4), nn.GELU()

    def forward(self, x: Tensor) -> Tensor:
        windows = x.unflatten(1, (2, 4)).flatten(0, 1)  # (2M, 4, C)
        return self.activation(self.mix(windows)).unflatten(0, (-1, 2))


@pytest.mark.parametrize("layer", ["mix", "activation"])
def test_windows_are_not_samples(layer: str) -> None:
    model = Folded()
    atomsep.attach(model, layer)
    with pytest.raises(
        ValueError, match="no other axis fits the model's input with 3 samples: .*window"
    ):
        model(torch.randn(3, 8, 4))


def test_a_layout_that_is_passed_needs_no_witness() -> None:
    model = Folded()
    attachment = atomsep.attach(model, "mix", layout="channels_last")
    model(torch.randn(3, 8, 4))
    assert attachment.importance.shape == (6, 4)
    assert "channels_last (M, L, C), by layout=" in repr(attachment)


@pytest.mark.parametrize("wrap", [parametrizations.weight_norm, parametrizations.spectral_norm])
def test_parametrised_layers(wrap: Callable[[nn.Module], nn.Module]) -> None:
    model = nn.Sequential(wrap(nn.Conv2d(3, 6, 3)), nn.Flatten(2), nn.Linear(16, 2))
    attachment = atomsep.attach(model, "0")
    model(torch.randn(2, 3, 6, 6))
    attachment.loss().backward()
    assert attachment.importance.shape == (2, 4, 4)


def test_blocks_of_diffusers() -> None:
    from diffusers import UNet2DModel

    torch.manual_seed(0)
    model = UNet2DModel(
        8, block_out_channels=(8, 16), layers_per_block=1, norm_num_groups=4,
        down_block_types=("DownBlock2D", "AttnDownBlock2D"), attention_head_dim=4,
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
    ).double()  # fmt: skip
    shapes = {
        "down_blocks.0": (3, 4, 4),
        "down_blocks.0.resnets.0": (3, 8, 8),
        "down_blocks.0.downsamplers.0": (3, 4, 4),
        "mid_block": (3, 4, 4),
        "up_blocks.0": (3, 8, 8),
        "up_blocks.1.resnets.0": (3, 8, 8),
    }
    attachment = atomsep.attach(model, list(shapes))
    images = torch.randn(3, 3, 8, 8, dtype=torch.float64)
    model(images, torch.tensor([1, 2, 3])).sample.square().mean().backward()
    assert {name: i.shape for name, i in attachment.importance.items()} == shapes
