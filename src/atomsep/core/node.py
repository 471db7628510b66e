r"""From tokens to per-sample statistics, in one node of the autograd graph.

The closed form. With q the charges, g = max(-q, 0), m the masses, w = 1/N, u the unit vectors
from the nucleus to the tokens (signs, for norm 1) and gP, gG, gS, gQ, gr, gmu the gradients that
arrive for the statistics,

    s = w sum g_i u_i        v = gmu - gr s

    position:  w m_i v + gr w g_i u_i
    charge:    gS + 2 q_i gQ,  plus gP for q_i > 0,
               plus -gG + w p_i·v - gr w |p_i - mu| for q_i < 0

so the backward pass needs the latent and the nucleus and keeps nothing of size N x h. Both passes
walk over slabs of samples that stay in the cache, and every temporary is one slab.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from atomsep.checks import check_norm
from atomsep.core import kernels
from atomsep.core.backend import for_tokens
from atomsep.core.plain.atoms import backward_slabs, forward_slabs
from atomsep.core.statistics import Reading, Statistics
from atomsep.functional import form_atoms


class Measured(NamedTuple):
    """What `measure` gives.

    Attributes:
        passed: the source, to be handed on in its place; None unless asked for.
        charge: token importance `(M, N)`, detached, in the source's type.
        statistics: the per-sample statistics, in float32 at least.
        keeps_source: whether the backward pass reads the source, which has to stay as it is.
    """

    passed: Tensor | None
    charge: Tensor
    statistics: Statistics
    keeps_source: bool = True


def measure(
    source: Tensor,
    scores: Tensor | None,
    mask: Tensor | None,
    count: Tensor,
    reading: Reading,
    *,
    passing: str | None = None,
) -> Measured:
    """Charges and statistics of a tensor of tokens, with the closed-form gradient.

    Args:
        source: the tokens in any layout. With `reading.feature` it holds the scores too.
        scores: `(M, N)` where `reading.feature` is None.
        mask: True on real tokens, `(M, N)`.
        count: number of real tokens, `(M,)`.
        reading: layout, feature and norm.
        passing: None, or what to hand on: "alias" for the source's own memory, "clone" for a
            copy, which a consumer may overwrite.

    Returns:
        What is handed on, the charges and the statistics.
    """
    check_norm(reading.norm)
    charge, table, *handed = _Measure.apply(source, scores, mask, count, reading, passing)
    statistics = Statistics(table, count, has_room(source, charge.shape, 3))
    return Measured(handed[0] if handed else None, charge, statistics)


def has_room(source: Tensor, charges: tuple[int, ...], vectors: int) -> bool:
    """Whether that many vectors a sample may be kept for the backward pass.

    2: the table and s; 3: the gradient of the loss with respect to the table as well. What is not
    kept is computed again. With the charges they are to stay under 5 % of the latent, or of one of
    64 features where it has fewer; each has 4 bytes a feature. `charges` is their shape, `(M, N)`.
    """
    samples, length = charges
    features = max(64, source.numel() // max(1, samples * length))
    column = length * source.element_size()  # bytes of one feature of a sample
    return 20 * (column + 4 * vectors * (features + 5)) < features * column


class _Measure(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        source: Tensor,
        scores: Tensor | None,
        mask: Tensor | None,
        count: Tensor,
        reading: Reading,
        passing: str | None,
    ) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        copied = ctx.mean_direction = None
        ctx.by_kernels = False
        if for_tokens(source, scores, mask, reading):
            copied, charge, table, mean_direction = kernels.measure_forward(
                source, scores, mask, count, reading, copy=passing == "clone"
            )
            ctx.mean_direction = mean_direction if has_room(source, charge.shape, 2) else None
            ctx.by_kernels = True
        else:
            with torch.autocast(source.device.type, enabled=False):
                charge, table = forward_slabs(source, scores, mask, count, reading)
        # The latent alone is saved: checkpointing runs this again and must find the same tensors,
        # while mask and statistics stay those of the forward that the loss was taken of.
        ctx.save_for_backward(source, scores)
        ctx.mask, ctx.count, ctx.reading, ctx.table = mask, count, reading, table.detach()
        ctx.mark_non_differentiable(charge)
        if passing is None:  # no output of None, which torch.compile cannot trace
            return charge, table
        if passing == "alias":
            return charge, table, source.detach()
        return charge, table, source.clone() if copied is None else copied

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        _, grad_table, *handed = grads
        grad_passed = handed[0] if handed else None
        rest = (None, None, None, None)
        if grad_table is None:
            return grad_passed, None, *rest
        source, scores = ctx.saved_tensors
        if torch.is_grad_enabled() and not torch.compiler.is_compiling():
            first, second = _differentiable_backward(
                source, scores, ctx.mask, ctx.reading, grad_table
            )
            if first is not None and grad_passed is not None:
                first = first + grad_passed
            return first, second, *rest
        known = (source, scores, ctx.mask, ctx.count, ctx.table)
        if ctx.by_kernels:
            mean_direction = ctx.mean_direction
            if mean_direction is None:  # small samples: looked at again, not kept
                mean_direction = kernels.measure_forward(
                    source, scores, ctx.mask, ctx.count, ctx.reading, copy=False
                )[-1]
            first, second = kernels.measure_backward(
                *known, mean_direction, ctx.reading, grad_passed, grad_table
            )
            return first, second, *rest
        with torch.autocast(source.device.type, enabled=False):
            first, second = backward_slabs(*known, ctx.reading, grad_passed, grad_table)
        return first, second, *rest


def _differentiable_backward(
    source: Tensor,
    scores: Tensor | None,
    mask: Tensor | None,
    reading: Reading,
    grad_table: Tensor,
) -> tuple[Tensor | None, Tensor | None]:
    """The same gradient by autograd through the plain formulas, to be differentiated again."""
    table = plain_table(source, scores, mask, reading)
    inputs = [t if t is not None and t.requires_grad else None for t in (source, scores)]
    wanted = [tensor for tensor in inputs if tensor is not None]
    grads = iter(
        torch.autograd.grad(table, wanted, grad_table, create_graph=True, materialize_grads=True)
    )
    first, second = (None if tensor is None else next(grads) for tensor in inputs)
    return first, second


def plain_table(
    source: Tensor, scores: Tensor | None, mask: Tensor | None, reading: Reading
) -> Tensor:
    """The table of statistics by plain formulas, differentiable twice."""
    tokens = reading.layout.tokens(source)
    if scores is None:
        atoms = form_atoms(tokens, mask, norm=reading.norm, charge=reading.feature or 0)
    else:
        atoms = form_atoms(
            tokens, mask, norm=reading.norm, charge=lambda _: scores, position=lambda p: p
        )
    return Statistics.pack(
        *(atoms.protons, atoms.electrons, atoms.charge_sum, atoms.charge_square),
        *(atoms.radius, atoms.nucleus),
    )
