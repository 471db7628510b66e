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
from typing import Any

import numpy as np
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


GAMMA = 0x9E3779B97F4A7C15
"""Odd constant by which SplitMix64 advances its state."""


def sample_states(indices: Any, seed: int, *purpose: Key) -> Any:
    """One state of 64 bits per sample, for `uniforms`.

    It depends on the sample's index, not on the samples it is asked for with: a batch, an epoch
    and a single sample give the same numbers.

    Args:
        indices: indices of the samples, `(n,)`.
        seed: seed of the run.
        purpose: what the numbers are for, and the epoch.
    """
    places = np.asarray(indices).astype(np.uint64)
    return _mix(np.uint64(derive(seed, *purpose)) + (places + np.uint64(1)) * np.uint64(GAMMA))


def uniforms(states: Any, first: int, count: int) -> Any:
    """Draws number `first` to `first + count - 1` of every sample, `(n, count)`, as float64.

    They are uniform in [0, 1): the outputs of SplitMix64 (Steele, Lea and Flood 2014) from each
    sample's state.

    Example:
        >>> states = sample_states(range(3), 0, "augmentation", 5)
        >>> bool((uniforms(states, 0, 4)[1:, 3:] == uniforms(states[1:], 3, 1)).all())
        True
    """
    numbers = np.arange(first + 1, first + count + 1, dtype=np.uint64)
    return (_mix(states[:, None] + numbers * np.uint64(GAMMA)) >> np.uint64(11)) * 2.0**-53


def _mix(state: Any) -> Any:
    """SplitMix64's output function: a bijection of 64 bits in which every bit counts."""
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state ^ (state >> np.uint64(31))
