"""Following the axes of a tensor back through its graph, and where that must stop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from atomsep.hooks.shaping import find_shaping

CONV, MAP = nn.Conv2d(3, 8, 3, padding=1), torch.randn(2, 3, 6, 10)
LINEAR, TOKENS = nn.Linear(4, 8), torch.randn(2, 5, 4)
NORM = nn.LayerNorm(4)
SCALE = nn.Parameter(torch.ones(8))


def heads(x: Tensor) -> Tensor:
    return x.unflatten(-1, (2, 4)).transpose(1, 2)


def attention(x: Tensor) -> Tensor:
    q = heads(LINEAR(NORM(x)))
    scores = (q @ q.transpose(-1, -2)).softmax(-1)
    return nn.functional.linear((scores @ q).transpose(1, 2).flatten(2), torch.ones(6, 8))


def fused_attention(x: Tensor) -> Tensor:
    q = heads(LINEAR(NORM(x)))
    return F.scaled_dot_product_attention(q, q, q).transpose(1, 2).flatten(2)


@pytest.mark.parametrize(
    ("make", "features", "samples"),
    [
        (lambda: CONV(MAP).relu(), 1, 0),
        (lambda: CONV(MAP).permute(0, 2, 3, 1).contiguous() * 2, 3, 0),
        (lambda: CONV(MAP).permute(0, -1, -2, 1).sigmoid(), 3, 0),
        (lambda: F.gelu(CONV(MAP)).flatten(2).transpose(1, 2), 2, 0),
        (lambda: CONV(MAP).flatten(2).permute(2, 0, 1), 2, 1),
        (lambda: F.max_pool2d(CONV(MAP), 2) + 1, 1, 0),
        (lambda: F.interpolate(CONV(MAP), scale_factor=2.0), 1, 0),
        (lambda: F.dropout(nn.BatchNorm2d(8)(CONV(MAP)), 0.5), 1, 0),
        (lambda: nn.InstanceNorm2d(8)(CONV(MAP)), 1, 0),
        (lambda: nn.GroupNorm(2, 8)(CONV(MAP)).to(torch.bfloat16), 1, 0),
        (lambda: CONV(MAP).chunk(2, 1)[1].tanh(), 1, 0),
        (lambda: torch.cat([CONV(MAP), CONV(MAP)], 1), 1, 0),
        (lambda: CONV(MAP)[:, :, 1:].roll(1, 2), 1, 0),
        (lambda: LINEAR(TOKENS).relu(), 2, None),
        (lambda: LINEAR(TOKENS).transpose(1, 2), 1, None),
        (lambda: LINEAR(TOKENS.unsqueeze(1)).squeeze(1), 2, None),
        (lambda: LINEAR(NORM(TOKENS)).unflatten(1, (5, 1)), 3, None),
        (lambda: nn.LayerNorm([5, 4])(NORM(TOKENS)), 2, None),
        (lambda: nn.Embedding(9, 4)(torch.zeros(2, 5).long()).mT, 1, None),
        (lambda: nn.RMSNorm(4)(TOKENS), 2, None),
        (lambda: SCALE[:, None, None] * torch.randn(2, 8, 3, 3).requires_grad_(), 1, None),
        (lambda: SCALE * torch.randn(2, 3, 3, 8), 3, None),
        (lambda: torch.einsum("blc,cd->bld", TOKENS, nn.Parameter(torch.randn(4, 8))), 2, None),
        (lambda: TOKENS.requires_grad_() + attention(TOKENS)[..., :4], 2, None),
        (lambda: fused_attention(TOKENS) + 0, 2, None),
    ],
)
def test_axes_are_followed_to_what_shaped_them(
    make: Callable[[], Tensor], features: int, samples: int | None
) -> None:
    found = find_shaping(make())
    assert found is not None
    assert (found.features, found.samples, found.folded) == (features, samples, False)


def windows(x: Tensor) -> Tensor:
    """(M, C, 6, 10) as windows of 3 x 5 in the place of samples: (4M, 15, C)."""
    x = x.unflatten(2, (2, 3)).unflatten(4, (2, 5)).permute(0, 2, 4, 3, 5, 1)
    return x.flatten(0, 2).flatten(1, 2)


def test_windows_in_the_place_of_samples_are_noticed() -> None:
    latent = windows(CONV(MAP))
    assert latent.shape == (8, 15, 8)
    found = find_shaping(latent)
    assert found is not None
    assert (found.features, found.samples, found.folded) == (2, 0, True)


class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return 2 * x

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return 2 * grads[0]


def written() -> Tensor:
    x = CONV(MAP).clone()
    x[:, 0] = 0
    return x


@pytest.mark.parametrize(
    "make",
    [
        lambda: MAP,  # no graph
        lambda: Double.apply(CONV(MAP)),
        written,
        lambda: F.pixel_shuffle(CONV(MAP), 2),
        lambda: heads(LINEAR(TOKENS)),  # features on two axes
        lambda: torch.fft.fft(CONV(MAP)).real,
        lambda: CONV(MAP).mean((2, 3), keepdim=True).expand(2, 8, 3, 3) * 1,
        lambda: checkpoint(CONV, MAP.clone().requires_grad_(), use_reentrant=True),
        lambda: SCALE.view(2, 4) * torch.randn(3, 2, 4),  # a parameter with two axes
    ],
)
def test_what_does_not_tell_stops_the_walk(make: Callable[[], Tensor]) -> None:
    assert find_shaping(make()) is None


def test_a_product_over_tokens_contradicts_the_norm_before_it() -> None:
    mix = nn.Sequential(nn.Linear(5, 7), nn.GELU(), nn.Linear(7, 5))
    found = find_shaping(mix(NORM(TOKENS).transpose(1, 2)))
    assert found is not None
    assert found.features is None
    assert "a matrix product with features on axis 2, fed by a layer norm" in found.by
    block = TOKENS.requires_grad_() + mix(NORM(TOKENS).mT).mT  # the mixing is the last branch
    after = find_shaping(block + nn.Linear(4, 4)(NORM(block)))
    assert after is not None
    assert after.features == 2


def test_a_checkpoint_is_not_recomputed() -> None:
    runs = []

    def block(x: Tensor) -> Tensor:
        runs.append(x)
        return LINEAR(NORM(x)).relu()

    found = find_shaping(checkpoint(block, TOKENS, use_reentrant=False).mT)
    assert found is not None
    assert found.features == 1
    assert len(runs) == 1


def test_an_attachment_in_front_is_walked_through() -> None:
    import atomsep

    model = nn.Sequential(nn.Conv2d(3, 8, 1), nn.ReLU())
    with atomsep.attach(model, "0"):
        found = find_shaping(model(MAP))
    assert found is not None
    assert found.features == 1


def test_a_long_walk_ends() -> None:
    x = TOKENS.requires_grad_()
    for _ in range(400):
        x = x.sin() + x.cos()
    assert find_shaping(x) is None
