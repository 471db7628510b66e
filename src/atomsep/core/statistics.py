"""What a sample's tokens come down to, and how a tensor is read for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from atomsep.checks import Norm
from atomsep.core.layout import Layout

FIELDS = 5
"""Columns of a table of statistics before the nucleus: P, G, sum q, sum q² and the radius."""


@dataclass(frozen=True, eq=False)
class Statistics:
    """What one sample's tokens come down to; the loss needs nothing else.

    One table, so that one tensor and one gradient travel through the graph.

    Attributes:
        table: `(M, 5 + h')`: P, G, sum q, sum q², the radius, then the nucleus.
        count: number of real tokens, `(M,)`.
        roomy: whether a vector a sample is little beside its tokens, and may be kept for the
            backward pass rather than computed again.
        ready: the loss, where it was computed with them, and the terms and weight it is for.
    """

    table: Tensor
    count: Tensor
    roomy: bool = True
    ready: tuple[Tensor, object] | None = None

    @staticmethod
    def pack(
        protons: Tensor,
        electrons: Tensor,
        charge_sum: Tensor,
        charge_square: Tensor,
        radius: Tensor,
        nucleus: Tensor,
    ) -> Tensor:
        """The table of its columns."""
        fields = torch.stack([protons, electrons, charge_sum, charge_square, radius], dim=1)
        return torch.cat([fields, nucleus], dim=1)

    @property
    def protons(self) -> Tensor:
        """P = sum max(q, 0), `(M,)`."""
        return self.table[:, 0]

    @property
    def electrons(self) -> Tensor:
        """G = sum max(-q, 0), `(M,)`."""
        return self.table[:, 1]

    @property
    def charge_sum(self) -> Tensor:
        """Net charge, sum q, `(M,)`."""
        return self.table[:, 2]

    @property
    def charge_square(self) -> Tensor:
        """Sum of q², `(M,)`."""
        return self.table[:, 3]

    @property
    def radius(self) -> Tensor:
        """Spread of the electrons, `(M,)`."""
        return self.table[:, 4]

    @property
    def nucleus(self) -> Tensor:
        """Weighted mean position, `(M, h')`."""
        return self.table[:, FIELDS:]

    def detach(self) -> Statistics:
        """The same numbers, cut from the graph."""
        return Statistics(self.table.detach(), self.count, self.roomy)


class Reading(NamedTuple):
    """How a tensor is read as charges and positions.

    Attributes:
        layout: where its tokens lie.
        feature: the feature that is the score, left out of the position; None if the scores
            come as a tensor of their own.
        norm: 1 or 2.
    """

    layout: Layout
    feature: int | None
    norm: Norm
