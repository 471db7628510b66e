"""Random numbers that depend on the seed and their purpose alone, not on what was drawn before.

Every draw has a key: the run's seed, a purpose ("order", "augmentation", "step"), and where it
stands (epoch, index). So all methods of a seed see the same initial weights, the same order, the
same augmentation and the same dropout masks, whatever a method draws for itself; the number of
loading processes makes no difference; and a run that goes on from a checkpoint has no random state
to restore.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import torch

Key = int | str


def derive(seed: int, *purpose: Key) -> int:
    """A seed of 63 bits for one purpose.

    Example:
        >>> derive(0, "order", 3) == derive(0, "order", 3), derive(0, "order", 3) == derive(0, "x")
        (True, False)
    """
    text = "\x1f".join(map(str, (seed, *purpose)))
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    # Hashed, since the CPU's generator reads the low 32 bits of its seed alone.
    return int.from_bytes(digest, "little") >> 1


def generator(seed: int, *purpose: Key) -> torch.Generator:
    """A generator of its own for one purpose, on the CPU.

    Example:
        >>> first = torch.rand(1, generator=generator(0, "order"))
        >>> bool(first == torch.rand(1, generator=generator(0, "order")))
        True
    """
    return torch.Generator().manual_seed(derive(seed, *purpose))


def seed_step(seed: int, *purpose: Key) -> None:
    """Seed the global generators of all devices in use, for what draws from them (dropout, noise).

    `torch.manual_seed` does the same, but takes a millisecond to note it for kinds of devices that
    nobody uses.
    """
    value = derive(seed, *purpose)
    torch.default_generator.manual_seed(value)
    if torch.cuda.is_initialized():
        for each in torch.cuda.default_generators:
            each.manual_seed(value)
    if torch.backends.mps.is_available():
        torch.mps.manual_seed(value)


@contextmanager
def seeded(seed: int, *purpose: Key) -> Iterator[None]:
    """The CPU's global generator seeded for one purpose, and as it was before at the end.

    Example:
        >>> before = torch.random.get_rng_state()
        >>> with seeded(0, "initial weights"):
        ...     layer = torch.nn.Linear(2, 2)
        >>> torch.equal(before, torch.random.get_rng_state())
        True
    """
    state = torch.random.get_rng_state()
    torch.default_generator.manual_seed(derive(seed, *purpose))
    try:
        yield
    finally:
        torch.random.set_rng_state(state)
