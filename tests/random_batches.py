"""Batches of many sizes and spreads for Hypothesis, and what tests of them share."""

from __future__ import annotations

from typing import NamedTuple

import torch
from hypothesis import strategies as st
from reference import make_batch
from torch import Tensor

norms = st.sampled_from([1, 2])
scales = st.sampled_from(["mean", "sum"])
seeds = st.integers(0, 2**16)


class Batch(NamedTuple):
    latent: Tensor
    mask: Tensor | None


@st.composite
def batches(draw: st.DrawFn, samples: int = 1, masked: bool | None = None) -> Batch:
    """Random latents of many sizes and spreads; with a mask, every sample has a real token."""
    shape = (
        draw(st.integers(samples, 5)),
        draw(st.integers(1, 6)),
        draw(st.integers(2, 5)),
    )
    spread = draw(st.sampled_from([0.1, 1.0, 10.0]))
    latent = make_batch(*shape, seed=draw(seeds), spread=spread)
    if masked is None:
        masked = draw(st.booleans())
    if not masked:
        return Batch(latent, None)
    rows = st.lists(st.booleans(), min_size=shape[1], max_size=shape[1]).filter(any)
    mask = torch.tensor(draw(st.lists(rows, min_size=shape[0], max_size=shape[0])))
    return Batch(latent, mask)


def close(actual: Tensor, expected: Tensor, tolerance: float = 1e-9) -> None:
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)


def order(size: int, seed: int) -> Tensor:
    return torch.randperm(size, generator=torch.Generator().manual_seed(seed))


def token_products(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """c and |c*|: the sums of positive and of negative products, token by token."""
    products = [x * y for x in a for y in b]
    zero = a.new_zeros(())
    return (
        sum((p for p in products if p > 0), start=zero),
        sum((-p for p in products if p < 0), start=zero),
    )
