"""What the tokens of a sample reduce to, how a tensor is read for it, and what the loss is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from atomsep.checks import Norm, Scale
from atomsep.core.layout import Layout

FIELDS = 5
"""Columns of a table of statistics before the nucleus: P, G, sum q, sum q² and the radius."""


class Reading(NamedTuple):
    """How a tensor is read as charges and positions.

    Attributes:
        layout: where its tokens are.
        feature: the feature that is the score and no part of the position; None if the scores
            come in a tensor of their own.
        norm: 1 or 2.
    """

    layout: Layout
    feature: int | None
    norm: Norm


class Tokens(NamedTuple):
    """A tensor of tokens, and all that is needed to read it.

    Attributes:
        source: the tokens in their layout. With `reading.feature` it holds the scores too.
        scores: `(M, N)` where `reading.feature` is None.
        mask: True on real tokens, `(M, N)`.
        counts: number of real tokens, `(M,)`, in float32 or the source's float64.
        reading: layout, feature and norm.
    """

    source: Tensor
    scores: Tensor | None
    mask: Tensor | None
    counts: Tensor
    reading: Reading


class Known(NamedTuple):
    """What the backward pass knows from the forward pass.

    Attributes:
        table: the statistics, `(M, 5 + h')`.
        mean_direction: s, `(M, h')`; None has it recomputed.
        line: stretch and shift per feature, `(h,)`, float32, that turn the source of the backward
            pass into the tokens; None where it is the tokens.
    """

    table: Tensor
    mean_direction: Tensor | None = None
    line: tuple[Tensor, Tensor] | None = None


class Terms(NamedTuple):
    """What the loss consists of: `energy · mean E + neutrality · (...) + occupancy · (...)`."""

    norm: Norm
    softening: float
    scale: Scale
    neutrality: float
    occupancy: float
    energy: float = 1.0


class Ready(NamedTuple):
    """The loss over all pairs, computed together with the statistics."""

    loss: Tensor
    terms: Terms
    weight: float


@dataclass(frozen=True, eq=False)
class Statistics:
    """What the tokens of each sample reduce to; the loss needs nothing else.

    They are one table, so that one tensor and one gradient travel through the graph.

    Attributes:
        table: `(M, 5 + h')`: P, G, sum q, sum q², the radius, then the nucleus.
        count: number of real tokens, `(M,)`.
        ready: the loss over all pairs, where it was computed in the same node.
        gathered: those of the samples of all processes, where they were exchanged; rows with a
            count of 0 stand for nobody.
        mask: True on the real tokens that the charges belong to, `(M, N)`; None if all are. Where
            tokens are sampled, these are more than the statistics count.
    """

    table: Tensor
    count: Tensor
    ready: Ready | None = None
    gathered: Statistics | None = None
    mask: Tensor | None = None

    @staticmethod
    def pack(
        protons: Tensor,
        electrons: Tensor,
        charge_sum: Tensor,
        charge_square: Tensor,
        radius: Tensor,
        nucleus: Tensor,
    ) -> Tensor:
        """The table with these columns."""
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
        return Statistics(self.table.detach(), self.count, mask=self.mask)

    def zero(self) -> Tensor:
        """A loss of 0 in their graph, with a gradient of 0, whatever the numbers are."""
        return self.table[:0].sum()

    def of_all(self) -> Statistics:
        """Those of the samples of all processes, as far as they are known; waits for the device."""
        if self.gathered is None:
            return self
        table, count = self.gathered.table, self.gathered.count
        return Statistics(table[count > 0], count[count > 0])
