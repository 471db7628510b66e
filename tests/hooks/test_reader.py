"""Reading a layer: the tensor, the axes and the mask, and no hook left behind."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from atomsep.hooks.reader import LayerReader


class Words(nn.Module):
    """Returns a tuple, and hands its mask to no one."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(4, 6)

    def forward(
        self,
        words: Tensor,
        attention_mask: Tensor | None = None,
        past_key_values: object = None,
    ) -> tuple[Tensor, int]:
        return self.mix(words), 3


def reader(**options: object) -> tuple[Words, LayerReader]:
    model = Words()
    return model, LayerReader(model, "mix", model.mix, **options)  # type: ignore[arg-type]


def test_tokens_and_mask_of_a_call() -> None:
    model, read = reader()
    mask = torch.tensor([[1, 1, 0], [1, 0, 0]])
    key, latent = read.pick(model(torch.randn(2, 3, 4), attention_mask=mask))
    layout = read.layout(latent)
    assert key == 0
    assert layout.axes == "channels_last"
    assert torch.equal(read.mask(layout, latent), mask.bool())
    model(torch.randn(2, 3, 4))
    assert read.mask(layout, latent) is None, "the mask is that of the last call"


def test_the_layout_is_that_of_each_shape() -> None:
    _, read = reader()
    assert read.layout(torch.zeros(2, 3, 6)) is read.layout(torch.ones(2, 3, 6))
    with pytest.raises(ValueError, match=r"shape \(2, 6\), which has no token axis"):
        read.layout(torch.zeros(2, 6))
    with pytest.raises(ValueError, match="not certain"):
        read.layout(torch.zeros(2, 6, 5))


def test_a_mask_that_covers_cached_tokens_too() -> None:
    model, read = reader()
    mask = torch.tensor([[0, 1, 1, 1], [1, 1, 1, 0]])
    latent = torch.zeros(2, 1, 6)
    layout = read.layout(latent)
    model(torch.zeros(2, 1, 4), mask, past_key_values=object())
    assert torch.equal(read.mask(layout, latent), mask[:, -1:].bool())
    model(torch.zeros(2, 1, 4), mask)
    with pytest.raises(ValueError, match=r"layer 'mix': the attention_mask has shape .* ignore"):
        read.mask(layout, latent)


def test_no_hook_is_left() -> None:
    model, read = reader()
    assert len(model._forward_pre_hooks) == 1
    read.remove()
    assert len(model._forward_pre_hooks) == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"layout": "last"}, "layout must be 'auto' or one of .*, not 'last'"),
        ({"mask": "padding"}, "mask='padding' is no"),
    ],
)
def test_what_does_not_fit_is_refused(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        reader(**options)
