"""Rules for the strength of atom modeling, as methods to compare.

    atomsep --import study.rules sweep digits-gan --methods plain,atom,atom-share --seeds 5
    atomsep --import study.rules sweep mnist-gan --methods plain,atom-capped --set weight=0.1

With `atom` the setting `weight` is the weight. With the rules below it is the share that is asked
for: the norm of the loss's gradient at the layer over that of the task's gradient there.

    atom-share        in every step, the weight that gives the share
    atom-calibrated   the same for a hundred steps, then the geometric mean of their weights
    atom-capped       as atom-share, but the weight never exceeds the one of atom-calibrated
    atom-decay        as atom-calibrated, times a factor that falls to 0 over `method.steps` steps
    atom-warm-up      as atom-calibrated, times a factor that rises from 0 over `method.steps` steps
    atom-energy       as atom-calibrated, with the energy ten times stronger than the constraints
    atom-constraints  as atom-calibrated, with the constraints ten times stronger than the energy

With `atom-centre-of-mass` the nucleus is the mean of the positions weighted by mass, where the
paper divides by the number of tokens; `weight` is the weight.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from atomsep.checks import in_backward
from atomsep.functional import form_atoms, neutrality, occupancy, pair_energy, widen
from atomsep.hooks.reader import LayerReader
from atomsep.hooks.strength import Strength
from atomsep.hooks.targets import find_layers, put_tensor
from atomsep.methods import METHODS, Binding, register
from atomsep.methods.atom import Atom
from atomsep.methods.base import Method

CALIBRATION = 100
"""Steps over which the weight is measured."""


ELECTRON = 1e-3
"""Mass of an electron in a centre of mass; the paper's is 0."""


class Gauge(torch.autograd.Function):
    """Splits a latent into one for the loss and one for the task, and weighs their gradients."""

    @staticmethod
    def forward(
        ctx: Any, latent: Tensor, rule: RuledAtom, share: float, strength: Strength | None
    ) -> tuple[Tensor, Tensor]:
        """The latent twice."""
        ctx.rule, ctx.share, ctx.strength = rule, share, strength
        return latent.clone(), latent.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        """The task's gradient plus the loss's, times the rule's weight."""
        own, task = gradients
        own = (ctx.rule.weigh(ctx.share, own, task) * widen(own)).to(task.dtype)
        if ctx.strength is not None:
            ctx.strength.own, ctx.strength.task = map(ctx.strength._norms, (own, task))
        return task + own, None, None, None


class RuledAtom(Atom):
    """Atom modeling whose weight follows from a share of the task's gradient.

    Args:
        rule: see above.
        steps: length of the decay or warm-up.
        **settings: those of `Atom`.
    """

    def __init__(
        self,
        rule: str = "share",
        steps: int = 1000,
        energy: float = 1.0,
        neutrality: float = 1.0,
        occupancy: float = 1.0,
        seed: int = 0,
    ) -> None:
        super().__init__(neutrality=neutrality, occupancy=occupancy, seed=seed, energy=energy)
        self.rule, self.steps = rule, steps
        self.register_buffer("step", torch.zeros(()))
        self.register_buffer("log_weight", torch.zeros(()))  # the sum over the first steps
        self.register_buffer("counted", torch.zeros(()))  # those of them in which there was one

    @torch.no_grad()
    def weigh(self, share: float, own: Tensor, task: Tensor) -> Tensor:
        """The weight of this step. Runs in the backward pass, on the device, without waiting."""
        dtype = torch.float64 if own.dtype == torch.float64 else torch.float32
        own_norm, task_norm = (torch.linalg.vector_norm(g, dtype=dtype) for g in (own, task))
        usable = (own_norm > 0) & (task_norm > 0) & own_norm.isfinite() & task_norm.isfinite()
        exact = torch.where(usable, share * task_norm / own_norm, 0)
        measuring = (self.step < CALIBRATION) & usable
        self.log_weight += torch.where(measuring, exact.clamp_min(1e-30).log(), 0)
        self.counted += measuring
        self.step += 1
        if self.rule == "share":
            return exact
        calibrated = (self.log_weight / self.counted.clamp_min(1)).exp()
        if self.rule == "capped":
            return torch.minimum(exact, calibrated)
        weight = torch.where(self.step <= CALIBRATION, exact, calibrated)
        progress = (self.step / self.steps).clamp(0, 1)
        factors = {"calibrated": 1.0, "decay": 1 - progress, "warm-up": progress}
        return torch.where(usable, factors[self.rule] * weight, 0)

    def bind(
        self,
        model: nn.Module,
        layer: Any,
        *,
        weight: float = 0.1,
        layout: Any = "auto",
        mask: Any = None,
        select: Any = None,
    ) -> Binding:
        """Put the rule on a layer; `weight` is the share."""
        [found] = find_layers(model, layer).items()
        return RuledBinding(self, LayerReader(model, *found, layout, mask, select), weight)


class RuledBinding(Binding):
    """A rule on a layer."""

    def __init__(self, method: RuledAtom, reader: LayerReader, share: float) -> None:
        self.method, self.reader, self.share = method, reader, share
        self.held: tuple[Tensor, Tensor | None] | None = None
        reader.listen(self._hook)

    def _hook(self, module: nn.Module, args: Any, output: Any) -> Any:
        key, latent = self.reader.pick(output)
        if not (self.reader.model.training and torch.is_grad_enabled()):
            return None
        layout = self.reader.layout(latent)
        strength = Strength(layout, 0) if self.watch_gradients else None
        for_loss, rest = Gauge.apply(  # type: ignore[no-untyped-call]
            latent, self.method, self.share, strength
        )
        if not in_backward():  # a checkpoint's recomputation has no loss of its own
            self.strength = strength
            self.held = layout.tokens(for_loss), self.reader.mask(layout, latent)
        return put_tensor(output, key, rest)

    def loss(self, labels: Tensor | None = None, again: Callable[[], Any] | None = None) -> Tensor:
        """The unweighted loss; its gradient is weighed at the layer."""
        assert self.held is not None, "the model has not run"
        (latent, mask), self.held = self.held, None
        value: Tensor = self.method(latent, None, mask)
        return value

    @property
    def gradient_shares(self) -> dict[str, float]:
        """Shares of the weighted loss."""
        return {} if self.strength is None else self.strength.shares()

    def detach(self) -> None:
        """Take every hook off the model."""
        self.reader.remove()


RULES = ("share", "calibrated", "capped", "decay", "warm-up")
for _rule in RULES:
    if f"atom-{_rule}" not in METHODS:
        register(
            f"atom-{_rule}", RuledAtom, f"atom modeling, strength by the rule {_rule}", rule=_rule
        )
for _part, _words, _energy in (
    ("energy", "a stronger energy", 10.0),
    ("constraints", "stronger constraints", 0.1),
):
    if f"atom-{_part}" not in METHODS:
        register(
            *(f"atom-{_part}", RuledAtom, f"atom modeling calibrated, with {_words}"),
            rule="calibrated",
            energy=_energy,
        )


class CentreOfMass(Method):
    """Atom modeling whose nuclei are centres of mass: a shift of all positions changes no energy.

    Args:
        seed: unused; nothing is drawn.
    """

    def __init__(self, seed: int = 0) -> None:
        super().__init__()

    def loss(
        self, latent: Tensor, labels: Tensor | None, mask: Tensor | None, second: Tensor | None
    ) -> Tensor:
        """Energy and constraints of atoms around their centres of mass."""
        atoms, positions = form_atoms(latent, mask), widen(latent)[..., 1:]
        real = 1 if mask is None else mask
        mass = (atoms.mass + ELECTRON * real).unsqueeze(
            2
        )  # or electrons alone would have no centre
        nucleus = (mass * positions).sum(1) / mass.sum(1)
        away = torch.linalg.vector_norm(positions - nucleus.unsqueeze(1), dim=2)
        radius = ((1 - atoms.mass) * away).sum(1) / atoms.count
        atoms = replace(atoms, nucleus=nucleus, radius=radius)
        energy = pair_energy(atoms).sum() / max(1, len(latent) * (len(latent) - 1))
        return energy + neutrality(atoms).mean() + occupancy(atoms).mean()


if "atom-centre-of-mass" not in METHODS:
    register("atom-centre-of-mass", CentreOfMass, "atom modeling around centres of mass")
