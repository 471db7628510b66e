"""The paper's equations as loops over samples A and B and tokens i and j.

Literal and slow, in float64, differentiable by autograd. A batch is a list of `(N_A, h)` tensors,
so that ragged samples need neither padding nor mask here. The equation numbers are the paper's.
The batches that the tests feed to both sides come from here too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

TokenMap = Callable[[Tensor], Tensor]


def first_feature(token: Tensor) -> Tensor:
    """Q: the first feature is the raw score."""
    return token[0]


def other_features(token: Tensor) -> Tensor:
    """P: the others are the position."""
    return token[1:]


def length(vector: Tensor, norm: int) -> Tensor:
    if norm == 1:
        return vector.abs().sum()
    return (vector * vector).sum().sqrt()


@dataclass
class Atom:
    charges: list[Tensor]
    masses: list[Tensor]
    nucleus: Tensor
    radius: Tensor


def atom(
    tokens: Tensor,
    norm: int = 2,
    score: TokenMap = first_feature,
    place: TokenMap = other_features,
) -> Atom:
    """Equations 6 and 9 to 12 for one sample, `(N, h)`."""
    zero = tokens.new_zeros(())
    charges = [2 * torch.sigmoid(score(token)) - 1 for token in tokens]
    masses = [1 - max(-q, zero) for q in charges]
    positions = [place(token) for token in tokens]
    nucleus = torch.zeros_like(positions[0])
    for m, p in zip(masses, positions, strict=True):
        nucleus = nucleus + m * p
    nucleus = nucleus / len(tokens)
    radius = zero
    for m, p in zip(masses, positions, strict=True):
        if m < 1:  # the others add 0, but autograd has no slope for the norm of 0
            radius = radius + (1 - m) * length(p - nucleus, norm)
    return Atom(charges, masses, nucleus, radius / len(tokens))


def coulomb(a: Atom, b: Atom, norm: int = 2, softening: float = 0.0) -> Tensor:
    """Equations 5, 7 and 8: the double sum over the tokens of one pair of samples.

    A softening replaces the atomic distance d by sqrt(d² + softening²); the paper has none.
    """
    atomic_distance = length(a.nucleus - b.nucleus, norm)
    if softening:
        atomic_distance = (atomic_distance**2 + softening**2).sqrt()
    total = atomic_distance.new_zeros(())
    for q_i in a.charges:
        for q_j in b.charges:
            step = 1 if -q_i * q_j > 0 else 0
            total = total + q_i * q_j / (atomic_distance + (a.radius + b.radius) / 2 * step)
    return total


def loss(
    samples: Sequence[Tensor],
    norm: int = 2,
    scale: str = "sum",
    neutrality: float = 1.0,
    occupancy: float = 1.0,
    softening: float = 0.0,
    score: TokenMap = first_feature,
    place: TokenMap = other_features,
    energy: float = 1.0,
) -> Tensor:
    """Equation 15 with the expectations as means over all pairs A ≠ B and over all samples.

    In mean scale, every sum over tokens is divided by the number of tokens. A weight of the energy
    is not in the paper.
    """
    atoms = [atom(tokens, norm, score, place) for tokens in samples]
    unit = [1 / len(tokens) if scale == "mean" else 1.0 for tokens in samples]
    total = samples[0].new_zeros(())
    for x in range(len(atoms)):
        for y in range(len(atoms)):
            if x != y:
                pair = energy * coulomb(atoms[x], atoms[y], norm, softening)
                total = total + unit[x] * unit[y] * pair / (len(atoms) * (len(atoms) - 1))
    for x in range(len(atoms)):
        first = sum(atoms[x].charges) * unit[x]
        squares = sum(q * q for q in atoms[x].charges)
        second = (squares - 2 / 3 * len(samples[x])) * unit[x]
        total = total + (neutrality * first**2 + occupancy * second**2) / len(atoms)
    return total


def make_batch(
    *shape: int, seed: int = 0, spread: float = 1.0, dtype: torch.dtype = torch.float64
) -> Tensor:
    """Normal numbers, the same for the same seed, whatever the global generator did."""
    generator = torch.Generator().manual_seed(seed)
    return (spread * torch.randn(*shape, generator=generator, dtype=torch.float64)).to(dtype)


def make_mask(lengths: Sequence[int], tokens: int) -> Tensor:
    """Real tokens in front, padding behind."""
    return torch.arange(tokens) < torch.tensor(lengths).unsqueeze(1)


def real_tokens(latent: Tensor, mask: Tensor | None) -> list[Tensor]:
    """The batch without its padding: one `(N_A, h)` tensor per sample."""
    if mask is None:
        return list(latent)
    return [tokens[real] for tokens, real in zip(latent, mask, strict=True)]


def make_linear(
    inputs: int, outputs: int, seed: int = 0, dtype: torch.dtype = torch.float64
) -> nn.Linear:
    """A linear layer of normal numbers, the same for the same seed."""
    layer = nn.Linear(inputs, outputs, dtype=dtype)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(make_batch(*parameter.shape, seed=seed))
    return layer
