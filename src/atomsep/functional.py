"""The paper's page as code: plain PyTorch, differentiable by autograd, nothing fused.

Every function here follows one line of the method. The training path
([`AtomLoss`][atomsep.AtomLoss], [`attach`][atomsep.attach]) computes the same numbers in fewer
passes and with a closed-form gradient; the tests compare the two.

Shapes: M samples, N tokens per sample, h features per token, h' features per position.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from atomsep import checks
from atomsep.checks import Norm, PositionMap, Scale, ScoreMap

DEFAULT_SOFTENING = 1e-2
"""Default softening length ε of the distance between nuclei; `pair_energy` explains the value."""

OCCUPANCY_TARGET = 2 / 3
"""Mean of q² that the occupancy term asks for: a third of the tokens each at +1, 0 and -1."""


class AtomStatistics(Protocol):
    """The per-sample statistics that the pair energy and the two constraints need."""

    @property
    def protons(self) -> Tensor:
        """P = sum max(q, 0)."""

    @property
    def electrons(self) -> Tensor:
        """G = sum max(-q, 0)."""

    @property
    def charge_sum(self) -> Tensor:
        """Net charge, sum q."""

    @property
    def charge_square(self) -> Tensor:
        """Sum of q²."""

    @property
    def count(self) -> Tensor:
        """Number of real tokens."""

    @property
    def radius(self) -> Tensor:
        """Spread of the electrons."""

    @property
    def nucleus(self) -> Tensor:
        """Mean of the positions weighted by mass, `(M, h')`."""


@dataclass(frozen=True, eq=False)
class Atoms:
    """A batch of samples, each treated as an atom.

    Attributes:
        charge: token importance q in [-1, 1], `(M, N)`; 0 on padding.
        mass: 1 - max(-q, 0), `(M, N)`; 0 on padding.
        nucleus: (1/N) sum m p, `(M, h')`.
        radius: (1/N) sum (1 - m) |p - nucleus|, `(M,)`.
        protons: P = sum max(q, 0), `(M,)`.
        electrons: G = sum max(-q, 0), `(M,)`.
        count: number of real tokens, `(M,)`, in the same floating-point type as the rest.
    """

    charge: Tensor
    mass: Tensor
    nucleus: Tensor
    radius: Tensor
    protons: Tensor
    electrons: Tensor
    count: Tensor

    @property
    def charge_sum(self) -> Tensor:
        """Net charge, sum q, `(M,)`."""
        return self.charge.sum(1)

    @property
    def charge_square(self) -> Tensor:
        """Sum of q², `(M,)`."""
        return self.charge.square().sum(1)


def form_atoms(
    latent: Tensor,
    mask: Tensor | None = None,
    *,
    norm: Norm = 2,
    charge: ScoreMap = 0,
    position: PositionMap = None,
) -> Atoms:
    r"""Form an atom from every sample of a latent.

    $$q_i = \tanh(Q(e_i)/2), \quad m_i = 1 - \max(-q_i, 0), \quad
      \mu = \tfrac1N \sum_i m_i p_i, \quad r = \tfrac1N \sum_i (1 - m_i) \lVert p_i - \mu \rVert$$

    Half-precision latents are converted to float32; float64 stays float64.

    Args:
        latent: the tokens, `(M, N, h)`.
        mask: True on real tokens, `(M, N)`. Padding has no influence and gets no gradient.
        norm: the norm of all distances, 1 or 2.
        charge: index of the feature used as the raw score Q, or a callable
            `(M, N, h) -> (M, N)`.
        position: a callable `(M, N, h) -> (M, N, h')`, or None for all features except the
            score (all features if `charge` is a callable).

    Returns:
        The atoms.

    Raises:
        TypeError: the latent is not floating point, the mask is not boolean, or `charge` or
            `position` is neither of the above.
        ValueError: a shape, the norm or the feature index is invalid, or a sample has no
            real token.

    Example:
        >>> latent = torch.tensor([[[9.0, 1.0], [-9.0, 3.0]]])
        >>> atoms = form_atoms(latent)
        >>> atoms.charge.round(decimals=2)
        tensor([[ 1., -1.]])
        >>> atoms.nucleus.round(decimals=2), atoms.radius.round(decimals=2)
        (tensor([[0.5000]]), tensor([1.2500]))
    """
    checks.check_norm(norm)
    charge = checks.check_maps(charge, position)
    checks.check_latent(latent, charge, position)
    count = checks.count_tokens(latent, mask)
    with torch.autocast(latent.device.type, enabled=False):
        wide = widen(latent)
        if mask is not None:  # before the maps: 0 · NaN would reach the gradient of their weights
            wide = wide.masked_fill(~mask.unsqueeze(-1), 0)
        scores, positions = apply_maps(wide, charge, position)
        if mask is not None:
            scores = scores.masked_fill(~mask, 0)
            positions = positions.masked_fill(~mask.unsqueeze(-1), 0)
        real = torch.ones_like(scores) if mask is None else mask.to(scores.dtype)
        q = torch.tanh(scores / 2)
        lightness = torch.relu(-q)  # 1 - m on real tokens
        mass = real - lightness
        share = 1 / count
        nucleus = (mass.unsqueeze(-1) * positions).sum(1) * share.unsqueeze(-1)
        spread = torch.linalg.vector_norm(positions - nucleus.unsqueeze(1), ord=norm, dim=-1)
        return Atoms(
            charge=q,
            mass=mass,
            nucleus=nucleus,
            radius=(lightness * spread).sum(1) * share,
            protons=torch.relu(q).sum(1),
            electrons=lightness.sum(1),
            count=count,
        )


def atomic_distance(atoms: AtomStatistics, norm: Norm = 2) -> Tensor:
    """Distances between nuclei, `(M, M)`, computed from exact differences.

    Example:
        >>> latent = torch.tensor([[[9.0, 1.0]], [[9.0, 4.0]]])
        >>> atomic_distance(form_atoms(latent))
        tensor([[0., 3.],
                [3., 0.]])
    """
    checks.check_norm(norm)
    return nuclear_distance(atoms.nucleus, atoms.nucleus, norm)


def pair_energy(
    atoms: AtomStatistics,
    *,
    norm: Norm = 2,
    softening: float = DEFAULT_SOFTENING,
    scale: Scale = "mean",
) -> Tensor:
    r"""Coulomb energy of every pair of samples over all their tokens, `(M, M)`.

    Each pair has only two distinct token distances, so the paper's double sum over tokens is
    exactly

    $$E_{AB} = \frac{S_A S_B + (P_A G_B + G_A P_B)\,\rho}{d}, \qquad
      \rho = \frac{\tilde r}{d + \tilde r}, \quad \tilde r = \tfrac{r_A + r_B}{2}, \quad
      S = P - G.$$

    The distance is softened as in N-body codes, $d = \sqrt{d_{AB}^2 + \epsilon^2}$. The default
    of 0.01 changes 1/d by half a percent for nuclei 0.1 apart (normalised layers give distances
    near 1) and limits the slope of 1/d to 0.385/ε² = 3,850, within the range of float16.

    Args:
        atoms: the atoms, or any object with their per-sample statistics.
        norm: 1 or 2.
        softening: ε above; 0 gives the paper's formula, which is infinite where nuclei coincide.
        scale: "mean" divides by the token counts of both samples; "sum" is the paper's sum.

    Returns:
        Symmetric energies, zero on the diagonal.

    Example:
        >>> latent = torch.tensor([[[9.0, 1.0]], [[9.0, 3.0]]])
        >>> pair_energy(form_atoms(latent), softening=0).round(decimals=4)
        tensor([[0.0000, 0.4998],
                [0.4998, 0.0000]])
    """
    checks.check_norm(norm)
    checks.check_scale(scale)
    checks.check_softening(softening)
    unit = scale_unit(atoms.count, scale)
    net, protons, electrons = atoms.charge_sum * unit, atoms.protons * unit, atoms.electrons * unit
    same = torch.eye(len(net), dtype=torch.bool, device=net.device)
    # The diagonal is replaced before dividing: masking afterwards leaves NaN in the gradient.
    distance = soften(atomic_distance(atoms, norm).masked_fill(same, 1), softening)
    mean_radius = (atoms.radius.unsqueeze(1) + atoms.radius) / 2
    opposite = protons.unsqueeze(1) * electrons + electrons.unsqueeze(1) * protons
    return coulomb(net.unsqueeze(1) * net, opposite, mean_radius, distance).masked_fill(same, 0)


def equilibrium_distance(atoms: AtomStatistics) -> Tensor:
    r"""The distance at which a pair neither attracts nor repels, `(M, M)` (Theorem 2).

    With $c = P_A P_B + G_A G_B$, $c^* = P_A G_B + G_A P_B$ and $k = c^*/c$,

    $$d^* = \frac{\tilde r}{\sqrt k - 1} \text{ for } k > 1, \qquad \infty \text{ for } k \le 1.$$

    It is 0 where all charges are opposite (c = 0 < c*). Only samples of opposite net charge have
    a finite one, because $c - c^* = (P_A - G_A)(P_B - G_B)$. Gradients
    are finite: none passes through $\sqrt{c\,c^*}$ where it is 0.

    Example:
        >>> latent = torch.tensor([[[9.0, 1.0], [-0.2, 2.0]], [[-9.0, 3.0], [0.2, 0.0]]])
        >>> equilibrium_distance(form_atoms(latent)).round(decimals=2)
        tensor([[   inf, 0.6100],
                [0.6100,    inf]])
    """
    protons, electrons = atoms.protons, atoms.electrons
    alike = protons.unsqueeze(1) * protons + electrons.unsqueeze(1) * electrons
    opposite = protons.unsqueeze(1) * electrons + electrons.unsqueeze(1) * protons
    mean_radius = (atoms.radius.unsqueeze(1) + atoms.radius) / 2
    net = protons - electrons
    attraction = -net.unsqueeze(1) * net  # c* - c without cancellation
    attracts = attraction > 0
    # r̃ / (sqrt(k) - 1), both sides multiplied by sqrt(c) (sqrt(c*) + sqrt(c))
    product = alike * opposite
    mixed = product > 0  # elsewhere the root's infinite slope would make gradients NaN
    root = product.where(mixed, 1).sqrt().where(mixed, 0)
    numerator = mean_radius * (alike + root)
    return torch.where(attracts, numerator / attraction.where(attracts, 1), torch.inf)


def neutrality(atoms: AtomStatistics, scale: Scale = "mean") -> Tensor:
    """Constraint 1, `(M,)`: (sum q)², or (mean q)² in mean scale.

    Example:
        >>> neutrality(form_atoms(torch.zeros(1, 4, 2)))
        tensor([0.])
    """
    checks.check_scale(scale)
    return (atoms.charge_sum * scale_unit(atoms.count, scale)).square()


def occupancy(atoms: AtomStatistics, scale: Scale = "mean") -> Tensor:
    """Constraint 2, `(M,)`: (sum q² - 2N/3)², or (mean q² - 2/3)² in mean scale.

    Example:
        >>> occupancy(form_atoms(torch.zeros(1, 4, 2))).round(decimals=4)
        tensor([0.4444])
    """
    checks.check_scale(scale)
    excess = atoms.charge_square - OCCUPANCY_TARGET * atoms.count
    return (excess * scale_unit(atoms.count, scale)).square()


# Parts of the formulas above that the training path shares.


def coulomb(net: Tensor, opposite: Tensor, mean_radius: Tensor, distance: Tensor) -> Tensor:
    """(net + opposite ρ) / d: equals c/d - c*/(d + r̃), without cancellation."""
    return (net + opposite * (mean_radius / (distance + mean_radius))) / distance


def nuclear_distance(first: Tensor, second: Tensor, norm: Norm) -> Tensor:
    """Distances between two sets of nuclei; a² + b² - 2ab would lose the small ones."""
    return torch.cdist(first, second, p=float(norm), compute_mode="donot_use_mm_for_euclid_dist")


def soften(distance: Tensor, softening: float) -> Tensor:
    """sqrt(d² + ε²), without overflow."""
    if not softening:
        return distance
    return torch.hypot(distance, torch.full_like(distance[:1, :1], softening))


def scale_unit(count: Tensor, scale: Scale) -> Tensor:
    """Factor for a sum over a sample's tokens: 1/N in mean scale, 1 in sum scale."""
    return 1 / count if scale == "mean" else torch.ones_like(count)


def widen(latent: Tensor) -> Tensor:
    """Convert half precision to float32, which sums over thousands of tokens need."""
    return latent.float() if latent.dtype in (torch.float16, torch.bfloat16) else latent


def apply_maps(latent: Tensor, charge: ScoreMap, position: PositionMap) -> tuple[Tensor, Tensor]:
    """Scores `(M, N)` and positions `(M, N, h')`."""
    if isinstance(charge, int):
        scores = latent[..., charge]
    else:
        scores = _mapped(charge, latent, "charge")
        if scores.dim() == 3 and scores.shape[-1] == 1:
            scores = scores.squeeze(-1)
        if scores.shape != latent.shape[:2]:
            raise ValueError(
                f"the charge map must return one score per token, shape {tuple(latent.shape[:2])}, "
                f"but returned {tuple(scores.shape)}"
            )
    if position is not None:
        positions = _mapped(position, latent, "position")
        if positions.dim() != 3 or positions.shape[:2] != latent.shape[:2]:
            raise ValueError(
                f"the position map must return one vector per token, shape "
                f"({latent.shape[0]}, {latent.shape[1]}, h'), but returned {tuple(positions.shape)}"
            )
    elif isinstance(charge, int):
        index = charge % latent.shape[-1]
        positions = torch.cat([latent[..., :index], latent[..., index + 1 :]], dim=-1)
    else:
        positions = latent
    return widen(scores), widen(positions)


def _mapped(apply: Callable[[Tensor], Tensor], latent: Tensor, role: str) -> Tensor:
    """What a learned map makes of a latent; a map that does not fit is named."""
    try:
        return apply(latent)
    except RuntimeError as error:
        if type(error) is not RuntimeError:  # no memory, for instance
            raise
        got = f"{tuple(latent.shape)}, {latent.dtype} on {latent.device}"
        raise ValueError(
            f"the {role} map cannot read tokens of shape {got}; give it their number of features, "
            f"type and device: {error}"
        ) from error
