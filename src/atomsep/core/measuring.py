"""From a layer's output to charges and statistics: which tokens count, and what reads them.

The default maps are part of the node (`atomsep.core.node`). Learned ones, and tokens that were
drawn, come before it, differentiated by autograd.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from atomsep import checks
from atomsep.checks import PositionMap, ScoreMap
from atomsep.core.distributed import Ranks
from atomsep.core.drawing import Draws, choose_tokens, take_tokens
from atomsep.core.layout import Layout
from atomsep.core.maps import Repeatable, Running, buffers_kept
from atomsep.core.node import Measured, measure
from atomsep.core.origin import Origin
from atomsep.core.statistics import FIELDS, Reading, Statistics, Terms, Tokens
from atomsep.functional import apply_maps, widen


class Measuring(nn.Module):
    """What `AtomLoss` does with a layer's output before there is a loss.

    Attributes:
        terms: what the loss consists of.
        charge: the feature or map of the charge.
        position: the map of the positions; None for all features but the charge.
        pairs: which pairs the loss is over.
        tokens: how many tokens of each sample are drawn; None for all.
        seed: of the draws.
        ranks: the processes whose samples form one batch.
    """

    terms: Terms
    charge: ScoreMap
    position: PositionMap
    pairs: Literal["all", "sampled"]
    tokens: int | None
    seed: int
    ranks: Ranks
    _drawn: Draws

    @property
    def maps(self) -> list[nn.Module]:
        """The learned maps that are modules."""
        return [each for each in (self.charge, self.position) if isinstance(each, nn.Module)]

    def measure(
        self,
        source: Tensor,
        mask: Tensor | None,
        layout: Layout,
        *,
        passing: str | None = None,
        weight: float | None = None,
        find_origin: Callable[[], Origin | None] | None = None,
        taking: Literal["drawn", "first", "all"] = "drawn",
    ) -> Measured:
        """Charges and statistics of a layer's output; see `atomsep.core.node.measure`.

        With `passing`, the result's `passed` takes the output's place for its consumers. With
        `weight`, the loss over all pairs is computed in the same node; `from_statistics` may
        still ask for another weight. `taking` says which tokens, where some are to be sampled.
        """
        samples, length, features = layout.sizes(source)
        if self.ranks.several:
            self.ranks.maps.watch(self.parameters())
        if samples == 0 and self.ranks.several:
            return self._measure_nobody(source, layout)
        checks.check_tokens(source, samples, length, features, self.charge, self.position)
        count = checks.count_real(samples, length, mask, source)
        given = weight is not None and self.pairs == "all" and not self.ranks.several
        asked: dict[str, Any] = {"terms": self.terms, "weight": weight or 1.0} if given else {}
        some = taking != "all" and self.tokens is not None and self.tokens < length
        if self.position is None and isinstance(self.charge, int) and not some:
            reading = Reading(layout, self.charge, self.terms.norm)
            whole = Tokens(source, None, mask, count, reading)
            return measure(whole, passing=passing, find_origin=find_origin, **asked)
        tokens = layout.tokens(source)
        # A learned map keeps its input, so a consumer that writes needs a copy of its own.
        passed = source.clone() if passing == "clone" else source
        charge = places = None
        all_real = mask
        if some:
            charge, places = self._choose(tokens, mask, taking == "drawn")
            mask = None if mask is None else mask.gather(1, places)
            count = checks.count_tokens(tokens[:, : self.tokens], mask)
        read = Repeatable(partial(self._read, places=places, mask=mask, count=count, **asked), self)
        measured: Measured = read.run(tokens)
        charge = measured.charge.to(source.dtype) if charge is None else charge
        return Measured(passed, charge, replace(measured.statistics, mask=all_real))

    def look(
        self, source: Tensor, mask: Tensor | None, layout: Layout
    ) -> tuple[Tensor, Statistics | None]:
        """Charges and statistics of an output that gives no loss; all tokens count.

        There are no statistics of an output that `measure` refuses.
        """
        source = source.detach()
        with torch.no_grad(), Running(self.maps, training=False):
            try:
                measured = self.measure(source, mask, layout, taking="all")
            except ValueError:  # nothing that stops an evaluation
                return self._charges(layout.tokens(source), mask), None
        return measured.charge, measured.statistics.detach()

    def repeat(self, source: Tensor, layout: Layout, passing: str) -> Tensor:
        """What `measure` handed on, when a checkpoint recomputes a layer's output.

        It saves the same tensors for the gradient and takes as many random numbers. Everything
        else was done by `measure`: nothing is drawn, and the maps' buffers stay as they are.
        """
        with buffers_kept(self):
            passed = self.measure(source, None, layout, passing=passing, taking="first").passed
        assert passed is not None
        return passed

    def _choose(self, tokens: Tensor, mask: Tensor | None, draw: bool) -> tuple[Tensor, Tensor]:
        """The charges of all tokens, and the places of those that count."""
        assert self.tokens is not None
        samples, length, _ = tokens.shape
        if not draw:
            places = torch.arange(self.tokens, device=tokens.device).expand(samples, -1)
            return tokens[..., 0], places
        with torch.no_grad(), Running(self.maps, training=False):
            charge = self._charges(tokens, mask)
        order = self._drawn.order(self.seed, samples, length, tokens.device)
        return charge, choose_tokens(order, mask, self.tokens)

    def _read(
        self,
        tokens: Tensor,
        places: Tensor | None,
        mask: Tensor | None,
        count: Tensor,
        **asked: Any,
    ) -> Measured:
        """Charges and statistics of tokens, or of those at some places, by the maps."""
        if places is not None:
            tokens = take_tokens(tokens, places)
        with torch.autocast(tokens.device.type, enabled=False), Running(self.maps):
            wide = widen(tokens)
            if mask is not None:  # 0 · NaN would reach the gradient of the maps' weights
                wide = wide.masked_fill(~mask.unsqueeze(-1), 0)
            scores, positions = apply_maps(wide, self.charge, self.position)
        reading = Reading(Layout(), None, self.terms.norm)
        return measure(Tokens(positions, scores, mask, count, reading), **asked)

    def _measure_nobody(self, source: Tensor, layout: Layout) -> Measured:
        """An empty batch, on a rank among others: nothing to read, but a part of the graph."""
        tokens = layout.tokens(source)
        scores, positions = apply_maps(widen(tokens), self.charge, self.position)
        nobody = positions.new_zeros(0, FIELDS + positions.shape[-1])
        table = nobody + (scores.sum() + positions.sum())
        return Measured(source.clone(), tokens[..., 0], Statistics(table, nobody[:, 0]))

    def _charges(self, tokens: Tensor, mask: Tensor | None) -> Tensor:
        """The charges of tokens, `(M, N)`, 0 on padding."""
        if isinstance(self.charge, int):
            scores = tokens[..., self.charge]
        else:
            with torch.autocast(tokens.device.type, enabled=False):
                scores, _ = apply_maps(widen(tokens), self.charge, lambda latent: latent)
        charge, mask = torch.tanh(widen(scores) / 2).to(tokens.dtype), checks.as_boolean(mask)
        return charge if mask is None else charge.masked_fill(~mask, 0)
