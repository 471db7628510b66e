"""Atom modeling and the baselines of the paper behind one interface."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from atomsep.methods.atom import Atom
from atomsep.methods.base import Method
from atomsep.methods.hinge import Hinge
from atomsep.methods.mixcse import MixCSE
from atomsep.methods.rank import RankH
from atomsep.methods.simclr import SimCLR
from atomsep.methods.simcse import SimCSE
from atomsep.methods.sscl import SSCL
from atomsep.methods.vq import VQ

__all__ = [
    "ATOM_MODELING",
    "METHODS",
    "SSCL",
    "VQ",
    "Atom",
    "Entry",
    "Hinge",
    "Method",
    "MixCSE",
    "RankH",
    "SimCLR",
    "SimCSE",
    "make_method",
]


@dataclass(frozen=True)
class Entry:
    """What is known of a method by its name.

    Attributes:
        title: as in the paper's tables.
        summary: one line.
        factory: makes the method; None for the task's loss alone.
    """

    title: str
    summary: str
    factory: Callable[..., Method] | None

    @property
    def options(self) -> tuple[str, ...]:
        """The names that `make_method` takes beyond `features` and `seed`.

        Example:
            >>> METHODS["mixcse"].options
            ('temperature', 'mixing')
        """
        fixed = {"features", "seed", *getattr(self.factory, "keywords", {})}
        return tuple(name for name in self._parameters() if name not in fixed)

    @property
    def second_view(self) -> Literal["augmentation", "dropout"] | None:
        """What makes the second view that the method needs; None: it needs one view.

        Example:
            >>> METHODS["simclr"].second_view
            'augmentation'
        """
        kind = getattr(self.factory, "func", self.factory)  # variants are partials of a class
        view: Literal["augmentation", "dropout"] | None = getattr(kind, "second_view", None)
        return view

    def make(self, features: int, seed: int, **options: Any) -> Method | None:
        """The method; features and seed reach those that use them."""
        if self.factory is None:
            return None
        known = {"features": features, "seed": seed}
        taken = {name: known[name] for name in known.keys() & self._parameters()}
        return self.factory(**taken, **options)

    def _parameters(self) -> list[str]:
        return [] if self.factory is None else list(inspect.signature(self.factory).parameters)


METHODS: dict[str, Entry] = {
    "plain": Entry("Plain", "the task's loss alone", None),
    "hinge-1": Entry(
        "Hinge (1-norm)",
        "a sample nearer to its own class than to the others, 1-norm",
        partial(Hinge, norm=1),
    ),
    "hinge-2": Entry(
        "Hinge (2-norm)",
        "a sample nearer to its own class than to the others, 2-norm",
        partial(Hinge, norm=2),
    ),
    "rank-h": Entry("Rank-H", "the same by cosine, with a margin", RankH),
    "simclr": Entry("SimCLR", "two augmented views of a sample told from all others", SimCLR),
    "simcse": Entry("SimCSE", "one sample under two dropout masks told from all others", SimCSE),
    "mixcse": Entry("MixCSE", "SimCSE with negatives mixed from neighbours", MixCSE),
    "sscl": Entry("SSCL", "SimCLR without a second view: samples spread by direction", SSCL),
    "vq": Entry("VQ", "every token becomes the nearest of 512 learned codes", VQ),
    "atom": Entry("Atom Modeling", "samples as atoms, by Coulomb's law", Atom),
    "atom-no-neutrality": Entry(
        "Atom Modeling w/o constraint 1",
        "atom modeling without neutrality",
        partial(Atom, neutrality=0.0),
    ),
    "atom-no-occupancy": Entry(
        "Atom Modeling w/o constraint 2",
        "atom modeling without occupancy",
        partial(Atom, occupancy=0.0),
    ),
    "atom-no-constraints": Entry(
        "Atom Modeling w/o constraint",
        "the energy of atom modeling alone",
        partial(Atom, neutrality=0.0, occupancy=0.0),
    ),
}
"""All methods by name, in the order in which tables show them."""

ATOM_MODELING = tuple(name for name in METHODS if name.startswith("atom"))
"""Atom modeling and its ablations."""


def make_method(name: str, *, features: int, seed: int = 0, **options: Any) -> Method | None:
    """A method by its name in `METHODS`; None for "plain".

    Args:
        name: for example "hinge-2" or "atom".
        features: h of the layer's tokens. VQ takes it for the length of its codes.
        seed: of the random numbers that a method draws (initial codes, sampled pairs and
            tokens). The global generator is left alone.
        **options: the method's own settings, for example `temperature=0.1`.

    Raises:
        ValueError: there is no such method, it has no such option, or a value does not fit.

    Example:
        >>> make_method("vq", features=64).codes.shape
        torch.Size([512, 64])
        >>> make_method("simcrl", features=64)
        Traceback (most recent call last):
            ...
        ValueError: there is no method 'simcrl'; did you mean 'simclr'?
    """
    if name not in METHODS:
        close = difflib.get_close_matches(name, METHODS, n=1)
        if close:
            raise ValueError(f"there is no method {name!r}; did you mean {close[0]!r}?")
        raise ValueError(f"there is no method {name!r}; the methods are {', '.join(METHODS)}")
    if features < 1:
        raise ValueError(f"features must be at least 1, not {features!r}")
    entry = METHODS[name]
    unknown = sorted(options.keys() - set(entry.options))
    if unknown:
        allowed = ", ".join(entry.options) or "no options"
        raise ValueError(f"method {name!r} has no option {unknown[0]!r}; it takes {allowed}")
    return entry.make(features, seed, **options)
