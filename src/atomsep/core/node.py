"""From a layer's output to its statistics and loss: the one node of the autograd graph.

A node takes the latent and returns the charges, the table of statistics, the loss over all pairs
where that is asked for, and the latent to hand on. Its backward pass receives the gradients of
all of them and writes the latent's gradient once. A backend computes both passes
(`atomsep.core.backend`); second derivatives go through the plain formulas
(`atomsep.core.reference`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from atomsep.checks import check_norm, transforms_active
from atomsep.core import reference
from atomsep.core.backend import backend, wants_kernels
from atomsep.core.origin import Origin
from atomsep.core.statistics import Known, Reading, Ready, Statistics, Terms, Tokens


class Measured(NamedTuple):
    """What `measure` gives.

    Attributes:
        passed: the source, to be handed on in its place; None unless asked for.
        charge: token importance `(M, N)`, detached, in the source's type.
        statistics: the per-sample statistics, in float32 at least.
        keeps_source: whether the backward pass reads the source, which must not be overwritten.
    """

    passed: Tensor | None
    charge: Tensor
    statistics: Statistics
    keeps_source: bool = True


def measure(
    tokens: Tokens,
    *,
    terms: Terms | None = None,
    weight: float = 1.0,
    passing: str | None = None,
    find_origin: Callable[[], Origin | None] | None = None,
) -> Measured:
    """Charges, statistics and loss of a tensor of tokens, with the closed-form gradient.

    Args:
        tokens: the tokens, in any layout.
        terms: of the loss over all pairs, which the statistics then hold as `ready`; None
            computes no loss.
        weight: factor of that loss.
        passing: None, or what to hand on: "alias" for the source's own memory, "clone" for a
            copy, which a consumer may overwrite.
        find_origin: looks for what the source was computed from. Where it finds that and the
            kernels run, the source is not kept, and what is handed on may be overwritten.
    """
    source, scores, mask, count, reading = tokens
    check_norm(reading.norm)
    if transforms_active():
        return _by_autograd(tokens, terms, weight, passing)
    by_kernels = wants_kernels(tokens)
    keeps_direction, keeps_slopes = (_has_room(source, reading, vectors) for vectors in (2, 3))
    origin = None
    if find_origin is not None and by_kernels and keeps_direction:
        channels_first = reading.layout.axes == "channels_first"
        origin = find_origin() if channels_first and not torch.compiler.is_compiling() else None
    if origin is not None:
        passing = "alias"
    job = _Job(reading, terms, weight, passing, by_kernels, keeps_direction, keeps_slopes)
    outputs = _Atoms.apply(source, scores, mask, count, job, origin)
    charge, table = outputs[:2]
    ready = None if terms is None else Ready(outputs[2], terms, weight)
    passed = None if passing is None else outputs[-1]
    statistics = Statistics(table, count, ready, mask=mask)
    return Measured(passed, charge, statistics, keeps_source=origin is None)


class _Job(NamedTuple):
    """What a node is asked for; see `measure`."""

    reading: Reading
    terms: Terms | None
    weight: float
    passing: str | None
    by_kernels: bool
    keeps_direction: bool
    keeps_slopes: bool


class _Atoms(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        source: Tensor,
        scores: Tensor | None,
        mask: Tensor | None,
        count: Tensor,
        job: _Job,
        origin: Origin | None,
    ) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        compute = backend(job.by_kernels)
        tokens = Tokens(source, scores, mask, count, job.reading)
        copied, charge, table, mean_direction = compute.read_atoms(tokens, job.passing == "clone")
        outputs, slopes = [charge, table], None
        if job.terms is not None:
            gradient = job.keeps_slopes and any(ctx.needs_input_grad[:2])
            loss, slopes = compute.pair_loss(table, count, job.terms, job.weight, gradient)
            outputs.append(loss)
        # Only the latent is saved: checkpointing runs this again and must find the same tensors,
        # while mask and statistics stay those of the forward that the loss belongs to.
        ctx.affine = ctx.line = None
        if origin is None:
            ctx.save_for_backward(source, scores)
        else:
            ctx.save_for_backward(origin.source, scores)
            ctx.affine, ctx.line = origin.affine, origin.line()
        ctx.job, ctx.mask, ctx.count, ctx.table = job, mask, count, table.detach()
        ctx.mean_direction = mean_direction if job.keeps_direction else None
        ctx.slopes = slopes
        ctx.mark_non_differentiable(charge)
        if job.passing is not None:  # no output of None, which torch.compile cannot trace
            outputs.append(source.detach() if copied is None else copied)
        return tuple(outputs)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        job = ctx.job
        grad_table = grads[1]
        grad_loss = None if job.terms is None else grads[2]
        grad_passed = None if job.passing is None else grads[-1]
        rest = (None, None, None, None)
        if grad_table is None and grad_loss is None:
            return grad_passed, None, *rest
        source, scores = _saved(ctx)
        if torch.is_grad_enabled() and not torch.compiler.is_compiling():
            first, second = _differentiable_backward(ctx, source, scores, grad_table, grad_loss)
            if first is not None and grad_passed is not None:
                first = first + grad_passed
            return first, second, *rest
        compute, scale = backend(job.by_kernels), None
        if grad_loss is not None:
            slopes = ctx.slopes
            if slopes is not None and grad_table is None:
                grad_table, scale = slopes, grad_loss  # the backward kernel multiplies
            else:
                if slopes is None:
                    _, slopes = compute.pair_loss(ctx.table, ctx.count, job.terms, job.weight, True)
                slopes = slopes * grad_loss
                grad_table = slopes if grad_table is None else grad_table + slopes
        assert grad_table is not None
        tokens = Tokens(source, scores, ctx.mask, ctx.count, job.reading)
        known = Known(ctx.table, ctx.mean_direction, ctx.line)
        first, second = compute.atoms_gradient(tokens, known, grad_passed, grad_table, scale)
        return first, second, *rest


_TWICE = (
    "an earlier backward() has freed the graph that the atom loss needs. Add the losses and call "
    "backward() once, (task + attachment.loss()).backward(), or pass retain_graph=True to the first"
)


def _saved(ctx: Any) -> Any:
    """The saved tensors.

    Raises:
        RuntimeError: an earlier backward pass has freed them.
    """
    if torch.compiler.is_compiling():
        return ctx.saved_tensors
    try:
        return ctx.saved_tensors
    except RuntimeError as error:
        if "backward through the graph a second time" not in str(error):
            raise
        raise RuntimeError(f"{_TWICE}. PyTorch says: {error}") from None


def _differentiable_backward(
    ctx: Any,
    source: Tensor,
    scores: Tensor | None,
    grad_table: Tensor | None,
    grad_loss: Tensor | None,
) -> tuple[Tensor | None, Tensor | None]:
    """The same gradient by autograd through the plain formulas, to be differentiated again."""
    job = ctx.job
    if ctx.affine is not None:
        source = ctx.affine.normalize(source)
    tokens = Tokens(source, scores, ctx.mask, ctx.count, job.reading)
    table = reference.table_of(reference.read_atoms(tokens))
    outputs, arriving = [], []
    if grad_table is not None:
        outputs.append(table)
        arriving.append(grad_table)
    if grad_loss is not None:
        outputs.append(reference.pair_loss(Statistics(table, ctx.count), job.terms))
        arriving.append(job.weight * grad_loss)
    inputs = [t if t is not None and t.requires_grad else None for t in (source, scores)]
    grads = iter(
        torch.autograd.grad(
            *(outputs, [tensor for tensor in inputs if tensor is not None], arriving),
            create_graph=True,
            materialize_grads=True,
        )
    )
    first, second = (None if tensor is None else next(grads) for tensor in inputs)
    return first, second


def _by_autograd(
    tokens: Tokens, terms: Terms | None, weight: float, passing: str | None
) -> Measured:
    """The same by the plain formulas, for torch.func and forward-mode AD."""
    source, count = tokens.source, tokens.counts
    atoms = reference.read_atoms(tokens)
    statistics = Statistics(reference.table_of(atoms), count, mask=tokens.mask)
    if terms is not None:
        loss = weight * reference.pair_loss(statistics, terms)
        statistics = replace(statistics, ready=Ready(loss, terms, weight))
    passed = source.clone() if passing == "clone" else source if passing else None
    return Measured(passed, atoms.charge.detach().to(source.dtype), statistics)


def _has_room(source: Tensor, reading: Reading, vectors: int) -> bool:
    """Whether that many vectors per sample may be kept for the backward pass.

    2: the table and s; 3: the gradient of the loss with respect to the table as well. What is not
    kept is recomputed. Together with the charges they are to stay under 5 % of the latent, or of
    one with 64 features where it has fewer; each takes 4 bytes per feature.
    """
    samples, length, _ = reading.layout.sizes(source)
    features = max(64, source.numel() // max(1, samples * length))
    column = length * source.element_size()  # bytes of one feature of a sample
    return 20 * (column + 4 * vectors * (features + 5)) < features * column
