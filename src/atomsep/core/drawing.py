"""Random pairs and tokens, from generators that are fixed by a seed and a number of draws."""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor


def generator_of(key: str, device: torch.device) -> torch.Generator:
    """A generator that starts with a text, on any device."""
    # Hashed: the CPU's generator reads only the low 32 bits of its seed.
    number = hashlib.blake2b(key.encode(), digest_size=8).digest()
    return torch.Generator(device).manual_seed(int.from_bytes(number, "little"))


def draw_pairs(
    samples: int, device: torch.device, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """As many pairs of different samples as there are samples; none of a single one."""
    count = samples if samples > 1 else 0
    first = torch.randint(samples, (count,), generator=generator, device=device)
    step = torch.randint(1, max(2, samples), (count,), generator=generator, device=device)
    return first, (first + step) % samples


def draw_tokens(
    tokens: Tensor, mask: Tensor | None, number: int, generator: torch.Generator
) -> tuple[Tensor, Tensor | None]:
    """So many tokens of each sample, and their mask; padding only where there are too few."""
    samples, length, features = tokens.shape
    order = torch.rand(samples, length, generator=generator, device=tokens.device)
    if mask is not None:
        order = order.masked_fill(~mask, 2)  # padding last
    index = order.topk(number, dim=1, largest=False).indices
    drawn = tokens.gather(1, index.unsqueeze(-1).expand(-1, -1, features))
    return drawn, None if mask is None else mask.gather(1, index)
