"""Other ways to compute the loss, to compare with."""

from __future__ import annotations

import torch
from torch import Tensor

from atomsep.functional import form_atoms, neutrality, occupancy, pair_energy


def sampled_token_pairs(
    tokens: Tensor, sampled: int = 100, softening: float = 1e-2, norm: int = 2
) -> Tensor:
    """The paper's loss as it describes it: M random pairs, all pairs of 100 random tokens."""
    samples, length, features = tokens.shape
    device = tokens.device
    if length > sampled:
        index = torch.rand(samples, length, device=device).topk(sampled, dim=1).indices
        tokens = tokens.gather(1, index.unsqueeze(-1).expand(-1, -1, features))
    tokens = tokens.float()
    charge, position = torch.tanh(tokens[..., 0] / 2), tokens[..., 1:]
    mass = 1 - torch.relu(-charge)
    nucleus = (mass.unsqueeze(-1) * position).mean(1)
    spread = torch.linalg.vector_norm(position - nucleus.unsqueeze(1), ord=norm, dim=-1)
    radius = ((1 - mass) * spread).mean(1)
    first = torch.randint(samples, (samples,), device=device)
    second = (first + torch.randint(1, samples, (samples,), device=device)) % samples
    away = torch.linalg.vector_norm(nucleus[first] - nucleus[second], ord=norm, dim=-1)
    distance = torch.hypot(away, torch.full_like(away, softening))[:, None, None]
    mean_radius = ((radius[first] + radius[second]) / 2)[:, None, None]
    product = charge[first].unsqueeze(2) * charge[second].unsqueeze(1)
    energy = (product / (distance + mean_radius * (product < 0))).sum((1, 2)).mean()
    count = charge.shape[1]
    return (
        energy
        + charge.sum(1).square().mean()
        + (charge.square().sum(1) - 2 / 3 * count).square().mean()
    )


def closed_form_autograd(tokens: Tensor) -> Tensor:
    """All tokens and pairs by the closed form, differentiated by autograd."""
    atoms = form_atoms(tokens)
    samples = len(tokens)
    energy = pair_energy(atoms).sum() / (samples * (samples - 1))
    return energy + neutrality(atoms).mean() + occupancy(atoms).mean()
