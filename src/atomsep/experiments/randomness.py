"""Random numbers that depend only on the seed and their purpose, not on what was drawn before.

Every draw has a key: the run's seed, a purpose ("order", "augmentation", "step") and a place
(epoch, index). All methods of a seed therefore see the same initial weights, order, augmentation
and dropout masks, whatever a method draws for itself; the number of loading processes makes no
difference; and a run that continues from a checkpoint has no random state to restore.
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
    # Hashed, because the CPU's generator reads only the low 32 bits of its seed.
    return int.from_bytes(digest, "little") >> 1


def generator(seed: int, *purpose: Key) -> torch.Generator:
    """A new generator for one purpose, on the CPU.

    Example:
        >>> first = torch.rand(1, generator=generator(0, "order"))
        >>> bool(first == torch.rand(1, generator=generator(0, "order")))
        True
    """
    return torch.Generator().manual_seed(derive(seed, *purpose))


def seed_step(seed: int, *purpose: Key) -> None:
    """Seed the global generators of all devices in use, for dropout, noise and the like.

    `torch.manual_seed` does the same, but spends a millisecond on kinds of devices that are not in
    use.
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
    """Seed the CPU's global generator for one purpose, and restore it at the end.

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
