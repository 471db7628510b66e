"""Equal samples are equal atoms, to the bit: 1/d would turn a difference into large gradients."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from atomsep import AtomLoss
from atomsep.checks import count_tokens
from atomsep.core import plain
from atomsep.core.layout import Layout
from atomsep.core.statistics import Reading, Tokens

SHAPES = [(1, 2), (7, 3), (9, 5), (33, 17), (49, 64), (100, 31), (257, 33), (1000, 8), (3136, 9)]


def repeated(
    samples: int, tokens: int, features: int, axes: str, dtype: torch.dtype
) -> tuple[Tensor, Layout]:
    generator = torch.Generator().manual_seed(tokens * features)
    sample = (100 * torch.randn(1, tokens, features, generator=generator)).to(dtype)
    latent = sample.expand(samples, -1, -1).contiguous()
    if axes == "channels_first":
        latent = latent.transpose(1, 2).contiguous()
    if axes == "length_first":
        latent = latent.transpose(0, 1).contiguous()
    return latent, Layout(axes)  # type: ignore[arg-type]


@pytest.mark.parametrize(("tokens", "features"), SHAPES)
@pytest.mark.parametrize("axes", ["channels_first", "channels_last", "length_first"])
@pytest.mark.parametrize("norm", [1, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_statistics_in_plain_pytorch(
    tokens: int, features: int, axes: str, norm: int, dtype: torch.dtype
) -> None:
    """With several threads too, which cut the work at other places."""
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        for samples in (2, 13):
            latent, layout = repeated(samples, tokens, features, axes, dtype)
            for mask in (None, torch.arange(tokens).expand(samples, -1) % 3 != 1):
                count = count_tokens(layout.tokens(latent), mask)
                reading = Reading(layout, 0, norm)  # type: ignore[arg-type]
                _, charge, table, _ = plain.read_atoms(Tokens(latent, None, mask, count, reading))
                assert torch.equal(table, table[:1].expand_as(table))
                assert torch.equal(charge, charge[:1].expand_as(charge))
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("size", [1.0, 1e4])
def test_the_gradient_of_duplicates_is_that_of_float64(size: float) -> None:
    """Every sample comes twice."""
    generator = torch.Generator().manual_seed(0)
    latent = size * torch.randn(3, 33, 17, generator=generator).repeat(2, 1, 1)
    single, double = latent.clone().requires_grad_(), latent.double().requires_grad_()
    loss, expected = AtomLoss()(single), AtomLoss()(double)
    torch.testing.assert_close(loss.double(), expected, rtol=1e-6, atol=0)
    [grad], [wanted] = torch.autograd.grad(loss, single), torch.autograd.grad(expected, double)
    assert (grad.double() - wanted).norm() < 1e-5 * wanted.norm()
