"""PyTorch's own masks, which are true on padding."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from masked_models import check, drawn, lengths, numbers
from torch import Tensor, nn

import atomsep
from atomsep.hooks.mask_fit import fits_length_first
from atomsep.hooks.masks import Mask

REAL = lengths(5, 3, 2, length=5)
PADDING = REAL == 0
ADDED = torch.zeros(3, 5, dtype=torch.float64).masked_fill(PADDING, -torch.inf)

pytestmark = pytest.mark.filterwarnings("ignore:.*nested tensor")


def encoder(batch_first: bool = True, nested: bool = False) -> Any:
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=batch_first)
    return drawn(nn.TransformerEncoder(layer, 2, enable_nested_tensor=nested))


@pytest.mark.parametrize("padding", [PADDING, ADDED], ids=["boolean", "added"])
@pytest.mark.parametrize("named", [None, "src_key_padding_mask"])
def test_an_encoder(padding: Tensor, named: str | None) -> None:
    model, x = encoder(), numbers(5, 8)
    by_name = lambda: model(x, src_key_padding_mask=padding)  # noqa: E731
    for layer in ("layers.0", "layers.1.linear2", "layers.0.norm1"):
        check(model, layer, by_name, REAL, mask=named)
    check(model, "layers.0", lambda: model(x, None, padding), REAL, mask=named)
    check(model, "layers.0", lambda: model(x), None, mask=named)


class Deep(nn.Module):
    """Gives its mask another name on the way, and puts the length first."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(8, 8)
        self.inside = nn.ModuleDict({"deep": encoder(batch_first=False)})

    def forward(self, x: Tensor, hidden: Tensor | None) -> Tensor:
        return self.inside["deep"](self.embed(x).transpose(0, 1), src_key_padding_mask=hidden)


def test_an_encoder_deep_in_a_model() -> None:
    model, x = Deep().double(), numbers(5, 8)
    flip = lambda latent: latent.transpose(0, 1)  # noqa: E731
    run = lambda: model(x, PADDING)  # noqa: E731
    check(model, "inside.deep.layers.0", run, REAL, flip, layout="length_first")
    atomsep.attach(model, "inside.deep.layers.0", layout="channels_last")
    with pytest.raises(ValueError, match=r'\(3, 5\).*\(5, 3\)\. It fits layout="length_first"'):
        run()


@pytest.mark.parametrize("masked", [False, True])
def test_both_sides_of_a_transformer(masked: bool) -> None:
    """Of the same length, so that the other's mask would fit."""
    options = {"num_encoder_layers": 1, "num_decoder_layers": 1, "dim_feedforward": 16}
    model = drawn(nn.Transformer(8, 2, **options, dropout=0.0, batch_first=True))
    model.encoder.use_nested_tensor = False
    x, own = numbers(5, 8), lengths(2, 5, 4, length=5)
    masks = {"src_key_padding_mask": PADDING, "memory_key_padding_mask": PADDING}
    if masked:
        masks["tgt_key_padding_mask"] = own == 0
    run = lambda: model(x, x.flip(0), **masks)  # noqa: E731
    check(model, "encoder.layers.0", run, REAL)
    for layer in ("decoder.layers.0", "decoder.norm", "decoder.layers.0.linear1"):
        check(model, layer, run, own if masked else None)
    check(model, "decoder.layers.0.multihead_attn", run, own if masked else None, select=0)


class Attending(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x: Tensor, memory: Tensor, padding: Tensor) -> Tensor:
        return self.attention(x, memory, memory, padding)[0]  # type: ignore[no-any-return]


def test_an_attention_masks_its_keys() -> None:
    """Which are the tokens of its output only if it attends to itself."""
    model, x = drawn(Attending()), numbers(5, 8)
    check(model, "attention", lambda: model(x, x, PADDING), REAL, select=0)
    check(model, "attention", lambda: model(x, x.flip(0), PADDING), None, select=0)


@pytest.mark.parametrize("mask", [None, False])
def test_nested_tensors_of_the_fast_path(mask: Any) -> None:
    """In eval mode without gradients, layers hand on a nested tensor."""
    model, x = encoder(nested=True).eval(), numbers(5, 8)
    slow = copy.deepcopy(model)
    slow.use_nested_tensor = False
    padding = PADDING.clone()
    padding[:, 4] = True  # the nested tensor is shorter than the batch
    seen: list[Tensor] = []
    model.layers[0].register_forward_hook(lambda m, a, out: seen.append(out))
    slow.layers[0].register_forward_hook(lambda m, a, out: seen.append(out))
    attachment = atomsep.attach(model, "layers.0", mask=mask)
    with torch.no_grad():
        model(x, src_key_padding_mask=padding)
        slow(x, src_key_padding_mask=padding)
    assert seen[0].is_nested
    expected = (seen[1][..., 0] / 2).tanh().masked_fill(padding, 0.0).float()
    expected = expected if mask is None else expected[:, :4]
    torch.testing.assert_close(attachment.importance, expected)
    with pytest.raises(RuntimeError, match="eval mode"):
        attachment.loss()


def test_a_mask_that_shows_the_length_first() -> None:
    mask = Mask(torch.ones(3, 5), "attention_mask")
    assert fits_length_first([mask], (5, 3, 8))
    assert not fits_length_first([mask], (3, 5, 8))
    assert not fits_length_first([mask], (5, 3, 8, 2))
    assert not fits_length_first([mask._replace(sure=False)], (5, 3, 8))
    assert not fits_length_first([Mask(torch.ones(4, 4), "attention_mask")], (4, 4, 8))
