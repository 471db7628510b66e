"""Random pairs and tokens, from generators that are fixed by a seed and a number of draws.

A compiled graph can hold neither a generator nor a number that changes with every step. There, each
draw is one operator, which finds the number of draws through a ticket: a tensor that never changes,
but that the operator claims to write to, so that a compiler keeps all draws and their order.
"""

from __future__ import annotations

import hashlib
import itertools
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import Tensor
from torch.library import custom_op

_NUMBERS = itertools.count()
_BY_TICKET: WeakValueDictionary[int, Draws] = WeakValueDictionary()


class Draws:
    """How often pairs or tokens were drawn.

    Attributes:
        number: of all draws so far, in compiled graphs as well.
        ticket: what a compiled graph knows of them.
    """

    def __init__(self, number: int = 0) -> None:
        self.number = number
        own = next(_NUMBERS)
        with torch.inference_mode(False):
            self.ticket = torch.tensor(own, device="cpu")
        _BY_TICKET[own] = self

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies and pickles count on their own."""
        return Draws, (self.number,)

    def generator(self, seed: int | str, device: torch.device) -> torch.Generator:
        """The generator of the next draw."""
        self.number += 1
        return generator_of(f"{seed} {self.number}", device)

    def pairs(self, seed: int, samples: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """As many pairs of different samples as there are samples; none of a single one."""
        if torch.compiler.is_compiling():
            first, second = _pairs_in_graph(self.ticket, str(seed), samples, device)
            return first, second
        return _draw_pairs(samples, device, self.generator(seed, device))

    def order(self, seed: int, samples: int, length: int, device: torch.device) -> Tensor:
        """Random numbers between 0 and 1, `(M, N)`, that bring tokens into an order."""
        if torch.compiler.is_compiling():
            order: Tensor = _order_in_graph(self.ticket, str(seed), samples, length, device)
            return order
        return _draw_order(samples, length, device, self.generator(seed, device))


def generator_of(key: str, device: torch.device) -> torch.Generator:
    """A generator that starts with a text, on any device."""
    # Hashed: the CPU's generator reads only the low 32 bits of its seed.
    number = hashlib.blake2b(key.encode(), digest_size=8).digest()
    return torch.Generator(device).manual_seed(int.from_bytes(number, "little"))


def choose_tokens(order: Tensor, mask: Tensor | None, number: int) -> Tensor:
    """Places of so many tokens of each sample, `(M, S)`; of padding only where they are too few."""
    if mask is not None:
        order = order.masked_fill(~mask, 2)  # padding last
    return order.topk(number, dim=1, largest=False).indices


def take_tokens(tokens: Tensor, places: Tensor) -> Tensor:
    """The tokens at these places, `(M, S, h)`."""
    return tokens.gather(1, places.unsqueeze(-1).expand(-1, -1, tokens.shape[-1]))


def _draw_pairs(
    samples: int, device: torch.device, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    count = samples if samples > 1 else 0
    first = torch.randint(samples, (count,), generator=generator, device=device)
    step = torch.randint(1, max(2, samples), (count,), generator=generator, device=device)
    return first, (first + step) % samples


def _draw_order(
    samples: int, length: int, device: torch.device, generator: torch.Generator
) -> Tensor:
    return torch.rand(samples, length, generator=generator, device=device)


@custom_op(
    "atomsep::draw_pairs",
    mutates_args=("ticket",),
    schema="(Tensor(a!) ticket, str seed, SymInt samples, Device device) -> (Tensor, Tensor)",
)
def _pairs_in_graph(
    ticket: Tensor, seed: str, samples: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    return _draw_pairs(samples, device, _generator_behind(ticket, seed, device))


@_pairs_in_graph.register_fake
def _(ticket: Tensor, seed: str, samples: int, device: torch.device) -> tuple[Tensor, Tensor]:
    count = samples if samples > 1 else 0
    first, second = (torch.empty(count, dtype=torch.int64, device=device) for _ in range(2))
    return first, second


@custom_op(
    "atomsep::draw_order",
    mutates_args=("ticket",),
    schema="(Tensor(a!) ticket, str seed, SymInt samples, SymInt length, Device device) -> Tensor",
)
def _order_in_graph(
    ticket: Tensor, seed: str, samples: int, length: int, device: torch.device
) -> Tensor:
    return _draw_order(samples, length, device, _generator_behind(ticket, seed, device))


@_order_in_graph.register_fake
def _(ticket: Tensor, seed: str, samples: int, length: int, device: torch.device) -> Tensor:
    return torch.empty(samples, length, device=device)


def _generator_behind(ticket: Tensor, seed: str, device: torch.device) -> torch.Generator:
    return _BY_TICKET[int(ticket)].generator(seed, device)
