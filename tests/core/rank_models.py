"""A small model with tokens, its batches and its attachments, for tests of several processes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from atomsep import AtomLoss, attach

TOKENS, FEATURES = 6, 5


class Model(nn.Module):
    """Two layers with tokens, then a head; takes a padding mask."""

    def __init__(self, dtype: torch.dtype = torch.float64, checkpointed: bool = False) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(3)
        self.first, self.second = nn.Linear(3, FEATURES), nn.Linear(FEATURES, FEATURES)
        self.head = nn.Linear(FEATURES, 1)
        for parameter in self.parameters():
            nn.init.normal_(parameter, generator=generator)
        self.checkpointed = checkpointed
        self.to(dtype)

    def forward(self, x: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        if self.checkpointed:
            hidden = checkpoint(self._hidden, x, use_reentrant=False)
        else:
            hidden = self._hidden(x)
        output: Tensor = self.head(hidden.tanh())
        return output

    def _hidden(self, x: Tensor) -> Tensor:
        hidden: Tensor = self.second(self.first(x).tanh())
        return hidden


def batch(samples: int, dtype: torch.dtype, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Tokens, and a mask that leaves between one and all tokens."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(samples, TOKENS, 3, generator=generator, dtype=torch.float64).to(dtype)
    lengths = torch.randint(1, TOKENS + 1, (samples,), generator=generator)
    return x, torch.arange(TOKENS) < lengths.unsqueeze(1)


def losses(case: dict[str, Any]) -> list[dict[str, Any]]:
    """Arguments of the criteria: of one attachment, or of two."""
    return case.get("losses", [{}])


def make(case: dict[str, Any], **more: Any) -> tuple[nn.Module, list[Any]]:
    model = Model(case.get("dtype", torch.float64), case.get("checkpointed", False))
    attachments = []
    for number, arguments in enumerate(losses(case)):
        torch.manual_seed(1 + number)
        given = dict(arguments)
        if case.get("maps"):
            given |= {"charge": nn.Linear(FEATURES, 1), "position": nn.Linear(FEATURES, 4)}
        criterion = AtomLoss(**given, **more).to(case.get("dtype", torch.float64))
        layers = case.get("layers", ["second"])
        attachments.append(attach(model, layers, criterion, weight=0.7 + number))
    return model, attachments
