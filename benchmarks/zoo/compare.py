"""Attach to a layer, and compare all gradients with those of a hook written by hand."""

from __future__ import annotations

import math
import random
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy
import torch
from torch import Tensor, nn

import atomsep
from atomsep.functional import form_atoms, neutrality, occupancy, pair_energy
from benchmarks.zoo.truth import Batch, Truth, call, latent_of

WEIGHT = 0.5
TOLERANCES = {torch.float64: 1e-5, torch.float32: 1e-4}
"""Error of the gradients that counts as exact: in float64, some models compute parts in float32."""


@dataclass(frozen=True)
class Outcome:
    """What became of an attempt to attach without arguments.

    Attributes:
        outcome: exact; refused, with a sentence; warned, and the gradients differ; wrong, without
            a word; crashed, with an error of something else; or undecided, where the reference is
            not certain.
        error: norm of the difference of all gradients over the norm of the atom loss's own.
        importance: shape of the importance.
        message: the sentence of a refusal or warning, or what differs.
    """

    outcome: str
    error: float | None = None
    importance: str = ""
    message: str = ""


class ByHand:
    """A training step with a hook written by hand on each layer, which keeps its output.

    Where a module returns the mask of its tokens, as Moonshine's encoder does, that one counts: it
    keeps more tokens than a short sample has alone.

    Args:
        model: the model.
        batch: what it is called with.
        truths: where the tokens of the layers are.
        padded: whether the batch is the padded one.
    """

    def __init__(
        self, model: nn.Module, batch: Batch, truths: dict[str, Truth], padded: bool
    ) -> None:
        self.model, self.truths, self.padded = model, truths, padded
        self.latents: dict[str, Tensor] = {}
        handles = [
            model.get_submodule(name).register_forward_hook(partial(self._keep, name))
            for name in truths
        ]
        self.masks: dict[str, Tensor] = {}
        handles += [
            module.register_forward_hook(partial(self._keep_mask, name))
            for name, module in model.named_modules()
            if name
        ]
        try:
            task = _task(_seeded(model, batch))
        finally:
            for handle in handles:
                handle.remove()
        self.task = _gradients(model, task, keep=True)

    def _keep(self, name: str, module: nn.Module, args: Any, output: Any) -> Any:
        picked = latent_of(output)
        assert picked is not None
        key, self.latents[name] = picked
        passed = picked[1].clone()  # whoever follows may overwrite it
        if key is None:
            return passed
        if isinstance(output, Mapping):
            output[key] = passed  # type: ignore[index]
            return output
        parts = [passed if index == key else part for index, part in enumerate(output)]
        return parts if isinstance(output, list) else tuple(parts)

    def _keep_mask(self, name: str, module: nn.Module, args: Any, output: Any) -> None:
        mask = output.get("attention_mask") if isinstance(output, Mapping) else None
        if isinstance(mask, Tensor):
            self.masks[f"{name}."] = mask.bool()

    def _mask(self, name: str, shape: torch.Size) -> Tensor | None:
        own = (m for part, m in self.masks.items() if name.startswith(part) and m.shape == shape)
        return next(own, self.truths[name].mask())

    def expect(self, name: str) -> tuple[Tensor, list[Tensor | None], float, float]:
        """Charges, gradients of the sum, the task's factor in it, and the atom gradient's norm.

        The factor makes both gradients equally large: an error in one is not lost in the other.
        """
        tokens = self.truths[name].tokens(self.latents[name])
        mask = self._mask(name, tokens.shape[:2]) if self.padded else None
        own = _gradients(self.model, WEIGHT * _plain_loss(tokens, mask), keep=True)
        unit = _norm(own) or 1.0
        factor = unit / (_norm(self.task) or 1.0)
        both = [_sum(*pair, factor) for pair in zip(own, self.task, strict=True)]
        charge = torch.tanh(tokens.detach()[..., 0] / 2)
        return charge if mask is None else charge * mask, both, factor, unit


def compare(model: nn.Module, batch: Batch, name: str, truth: Truth, by_hand: ByHand) -> Outcome:
    """Attach to a layer without arguments, train one step, and compare with the one by hand."""
    factor = 1.0
    if not truth.problem:
        charge, expected, factor, unit = by_hand.expect(name)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        attachment = None
        try:
            attachment = atomsep.attach(model, name, weight=WEIGHT)
            task = _task(_seeded(model, batch))
            gradients = _gradients(model, factor * task + attachment.loss())
            importance = attachment.importance
        except Exception as error:  # of atomsep or, by accident, of something else
            known = isinstance(error, (ValueError, RuntimeError, TypeError))
            ours = known and _from_atomsep(error)
            text = f"{type(error).__name__}: {error}"
            return Outcome("refused" if ours else "crashed", message=_line(text))
        finally:
            if attachment is not None:
                attachment.detach()
    said = [str(w.message) for w in caught if issubclass(w.category, atomsep.AtomWarning)]
    shape = "x".join(map(str, importance.shape))
    if truth.problem:
        folded = truth.problem.startswith("samples folded")
        return Outcome("wrong" if folded else "undecided", None, shape, truth.problem)
    apart = [_sum(one, two, -1) for one, two in zip(gradients, expected, strict=True)]
    error = _norm(apart) / unit
    if not math.isfinite(unit * factor):
        return Outcome("undecided", None, shape, "the model returns NaN by itself")
    exact = error <= TOLERANCES[next(model.parameters()).dtype]
    if importance.numel() != charge.numel() or not exact:
        # It says that padding or a class token counts, and what to pass.
        if any("mask=" in text or "skip_tokens=" in text for text in said):
            return Outcome("warned", error, shape, _line(" ".join(said)))
        return Outcome("wrong", error, shape, f"truth: {truth}")
    if not torch.allclose(importance.reshape(charge.shape).to(charge), charge, atol=1e-4):
        return Outcome("wrong", error, shape, "the importance differs")
    return Outcome("exact", error, shape, _line(" ".join(said)))


def _plain_loss(latent: Tensor, mask: Tensor | None) -> Tensor:
    """The loss by the plain formulas and autograd."""
    atoms = form_atoms(latent, mask)
    samples = len(latent)
    energy = pair_energy(atoms).sum() / (samples * (samples - 1))
    return energy + neutrality(atoms).mean() + occupancy(atoms).mean()


def _seeded(model: nn.Module, batch: Batch) -> Any:
    for seed in (torch.manual_seed, random.seed, numpy.random.seed):
        seed(0)
    return call(model, batch)


def _task(output: Any) -> Tensor:
    """Some number that depends on everything the model returns."""
    total = torch.zeros(())
    for tensor in _leaves(output):
        weights = torch.linspace(-1, 1, tensor.numel(), dtype=tensor.dtype).cos()
        finite = torch.where(tensor.isfinite(), tensor, 0).flatten()
        total = total + (finite * weights).mean()
    return total


def _leaves(output: Any) -> list[Tensor]:
    if isinstance(output, Tensor):
        return [output] if output.is_floating_point() and output.numel() else []
    if isinstance(output, Mapping):
        output = list(output.values())
    return (
        [t for part in output for t in _leaves(part)] if isinstance(output, (tuple, list)) else []
    )


def _gradients(model: nn.Module, loss: Tensor, keep: bool = False) -> list[Tensor | None]:
    parameters = [p for p in model.parameters() if p.requires_grad]
    if not loss.requires_grad:
        return [None] * len(parameters)
    return list(torch.autograd.grad(loss, parameters, retain_graph=keep, allow_unused=True))


def _sum(one: Tensor | None, two: Tensor | None, factor: float) -> Tensor | None:
    if two is None:
        return one
    return factor * two if one is None else one + factor * two


def _norm(gradients: list[Tensor | None]) -> float:
    return sum(float(g.double().square().sum()) for g in gradients if g is not None) ** 0.5


def _from_atomsep(error: BaseException) -> bool:
    """Whether the last frame of the traceback lies in the package."""
    trace = error.__traceback__
    assert trace is not None
    while trace.tb_next is not None:
        trace = trace.tb_next
    return "atomsep" in str(trace.tb_frame.f_globals.get("__name__", "")).split(".")


def _line(text: str) -> str:
    return " ".join(text.split())[:400]
