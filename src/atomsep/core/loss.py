"""AtomLoss: the method as one module."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor, nn

from atomsep import checks
from atomsep.checks import Norm, PositionMap, Scale, ScoreMap
from atomsep.core.distributed import Ranks, loss_of_all, loss_of_drawn
from atomsep.core.drawing import Draws, generator_of
from atomsep.core.handshake import checksum
from atomsep.core.layout import Layout
from atomsep.core.measuring import Measuring
from atomsep.core.reference import pair_loss
from atomsep.core.statistics import Statistics, Terms
from atomsep.functional import DEFAULT_SOFTENING


class AtomLoss(Measuring):
    r"""The loss of atom modeling over a latent of tokens.

    $$\mathcal L = \lambda_0 \frac{1}{M(M-1)} \sum_{A \ne B} E_{AB}
      + \lambda_1 \frac1M \sum_A \left(\sum_i q_i\right)^2
      + \lambda_2 \frac1M \sum_A \left(\sum_i q_i^2 - \tfrac23 N_A\right)^2$$

    over all tokens and all pairs, with every sum over tokens divided by the token count in the
    default scale. Paper: "Dynamic Latent Separation for Deep Learning", ICML 2024, equation 15.

    Args:
        norm: 1 or 2, the norm of all distances.
        scale: "mean" makes the loss independent of the token count; "sum" is the paper's.
            For equal N, `sum = N² · mean`.
        neutrality: weight λ1 of the first constraint; 0 leaves it out.
        occupancy: weight λ2 of the second constraint; 0 leaves it out.
        softening: length below which nuclei count as touching; see
            [`pair_energy`][atomsep.functional.pair_energy].
        charge: the feature that is the raw score, or a callable or module `(M, N, h) -> (M, N)`.
        position: None for all other features, or a callable or module `(M, N, h) -> (M, N, h')`.
        pairs: "all", or "sampled" for as many random pairs as there are samples.
        tokens: None for all, or how many random tokens of each sample to take.
        seed: of the random generator for sampling, which is the loss's own: drawing from it
            leaves the global one, and so dropout and data order, untouched.
        energy: weight λ0 of the energy; 0 leaves it out, so that the constraints act alone.
        group: the `torch.distributed` process group whose samples form one batch: "world" for all
            ranks, once a process group is initialised; None keeps pairs within each rank.

    Shape:
        - latent: `(M, N, h)`, float16, bfloat16, float32 or float64
        - mask: `(M, N)`, True on real tokens; boolean, or 0 and 1
        - output: scalar, float32 at least

    Example:
        >>> latent = torch.tensor([[[1.0, 0.0], [-1.0, 1.0]], [[2.0, 1.0], [-2.0, 0.0]]])
        >>> loss = AtomLoss()
        >>> print(f"{loss(latent.requires_grad_()):.4f}")
        0.4391
    """

    def __init__(
        self,
        norm: Norm = 2,
        scale: Scale = "mean",
        neutrality: float = 1.0,
        occupancy: float = 1.0,
        softening: float = DEFAULT_SOFTENING,
        charge: ScoreMap = 0,
        position: PositionMap = None,
        pairs: Literal["all", "sampled"] = "all",
        tokens: int | None = None,
        seed: int = 0,
        *,
        energy: float = 1.0,
        group: Any = "world",
    ) -> None:
        super().__init__()
        checks.check_norm(norm)
        checks.check_scale(scale)
        checks.check_softening(softening)
        weights = {"energy": energy, "neutrality": neutrality, "occupancy": occupancy}
        for name, value in weights.items():
            if not 0 <= value < float("inf"):
                raise ValueError(f"{name} must be a weight of at least 0, not {value!r}")
            weights[name] = float(value)
        if pairs not in ("all", "sampled"):
            raise ValueError(f'pairs must be "all" or "sampled", not {pairs!r}')
        if tokens is not None:
            tokens = checks.whole("tokens", tokens, "None or a whole number")
        if tokens is not None and tokens < 1:
            raise ValueError(f"tokens must be None for all of them, or at least 1, not {tokens!r}")
        # Numbers of Python: ranks compare them as text, and NumPy has others.
        self.terms = Terms(1 if norm == 1 else 2, float(softening), scale, **weights)
        self.charge = checks.check_maps(charge, position)
        self.position = position
        self.pairs = pairs
        self.tokens = tokens
        self.seed = checks.whole("seed", seed, "a whole number")
        self._drawn, self.pair_draws = Draws(), 0
        self.ranks = Ranks(group)

    @classmethod
    def paper(cls, norm: Norm = 2, *, tokens: int = 100, seed: int = 0) -> AtomLoss:
        """The paper's own setting: M sampled pairs, 100 sampled tokens, sums.

        Example:
            >>> AtomLoss.paper().tokens
            100
        """
        return cls(norm=norm, scale="sum", pairs="sampled", tokens=tokens, seed=seed)

    def forward(self, latent: Tensor, mask: Tensor | None = None) -> Tensor:
        """The loss of one batch.

        Raises:
            TypeError: the latent is not floating point, or the mask holds other numbers than 0
                and 1.
            ValueError: a shape does not fit, or a sample has no real token.
        """
        checks.check_latent(latent, self.charge, self.position)
        mask = checks.as_boolean(mask)
        return self.from_statistics(self.measure(latent, mask, Layout(), weight=1.0).statistics)

    def from_statistics(
        self, statistics: Statistics, weight: float = 1.0, layer: str = ""
    ) -> Tensor:
        """The loss from the per-sample statistics that `measure` gave, times a weight.

        Args:
            statistics: of this process's samples.
            weight: factor of the loss; 0 gives 0 and a gradient of 0, even of an infinite loss.
            layer: the layer's name, which must be the same on all ranks.
        """
        if self.ranks.several:
            return self._of_all_ranks(statistics, weight, layer)
        if not weight:
            return statistics.zero()
        if self.pairs == "sampled":
            samples, device = len(statistics.count), statistics.count.device
            pairs = self._drawn.pairs(self.seed, samples, device)
            return weight * pair_loss(statistics, self.terms, pairs)
        ready = statistics.ready
        if ready is None or ready.terms != self.terms:
            return weight * pair_loss(statistics, self.terms)
        return ready.loss if ready.weight == weight else ready.loss * (weight / ready.weight)

    def importance(self, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        """Token importance of a latent: its charges, `(M, N)`, 0 on padding.

        Example:
            >>> AtomLoss().importance(torch.tensor([[[9.0, 1.0], [0.0, 2.0]]])).round(decimals=2)
            tensor([[1., 0.]])
        """
        return self._charges(tokens, mask)

    def extra_repr(self) -> str:
        """The settings, shown in the module's repr."""
        names = "pairs", "tokens", "charge", "position"
        settings = {**self.terms._asdict(), **{name: getattr(self, name) for name in names}}
        plain = {k: v for k, v in settings.items() if not isinstance(v, nn.Module)}
        return ", ".join(f"{name}={value!r}" for name, value in plain.items())

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        """Sampling goes on where it was: the numbers of draws belong to the state."""
        super()._save_to_state_dict(destination, prefix, keep_vars)
        for name in self._counts:
            destination[prefix + name] = torch.tensor(getattr(self, name))

    def _load_from_state_dict(self, state: Any, prefix: str, *rest: Any) -> None:
        for name in self._counts:
            if prefix + name in state:
                setattr(self, name, int(state.pop(prefix + name)))
        super()._load_from_state_dict(state, prefix, *rest)

    @property
    def _counts(self) -> tuple[str, ...]:
        """What the state has beside the maps."""
        return ("draws", "pair_draws") if self.samples else ()

    @property
    def draws(self) -> int:
        """How often this process drew pairs or tokens."""
        return self._drawn.number

    @draws.setter
    def draws(self, number: int) -> None:
        self._drawn.number = number

    @property
    def feature(self) -> int | None:
        """The feature that is the charge and nothing else; None where learned maps read it."""
        return self.charge if isinstance(self.charge, int) and self.position is None else None

    @property
    def samples(self) -> bool:
        """Whether pairs or tokens are sampled."""
        return self.pairs == "sampled" or self.tokens is not None

    def _of_all_ranks(self, statistics: Statistics, weight: float, layer: str) -> Tensor:
        if checks.transforms_active():
            raise RuntimeError(
                "pairs across processes cannot be formed inside torch.func transforms or "
                "forward-mode AD; pass AtomLoss(group=None) to form them within each process"
            )
        sampled = {"tokens": self.tokens, "seed": self.seed} if self.samples else {}
        maps = {
            "charge": "a map" if callable(self.charge) else self.charge,
            "position": "a map" if callable(self.position) else self.position,
        }
        settings = {"layer": layer, "pairs": self.pairs, **sampled, **maps, **self.terms._asdict()}

        def at_first() -> dict[str, Any]:
            return {
                "weight": float(weight),
                "the number of draws of pairs": self.pair_draws,
                "the checksum of its maps": checksum(self.parameters()),
            }

        link = self.ranks.link(statistics, at_first, **settings)
        if self.pairs == "all":
            return loss_of_all(statistics, self.terms, weight, link)
        generator = self._generator_of_ranks(statistics.table.device)
        return loss_of_drawn(statistics, self.terms, weight, link, generator)

    def _generator_of_ranks(self, device: torch.device) -> torch.Generator:
        """One that is equal on all ranks, which may have drawn tokens more or less often."""
        self.pair_draws += 1
        return generator_of(f"{self.seed} pairs {self.pair_draws}", device)
