"""All methods by name. Importing this table does not import torch; making a method does.

A new method needs its own file, an entry here, and a section on the documentation's page. The
experiments, figures and tables find the rest in its entry.
"""

from __future__ import annotations

import difflib
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from atomsep.methods.base import Method

SecondView = Literal["augmentation", "dropout"]


@dataclass(frozen=True)
class Entry:
    """What is known about a method by its name.

    Attributes:
        title: name in tables.
        summary: one line.
        source: the class, or "module:Class" within `atomsep.methods`; None for the task's loss
            alone.
        fixed: arguments of the class that the name stands for.
        options: names of the arguments that `make_method` takes beyond `features` and `seed`.
        needs_labels: whether it needs the classes of the samples.
        second_view: how the second view that it needs is made; None if it needs one view.
        families: families of experiments that offer it; empty for all that provide what it needs.
        label: name in figures, which may have two lines; the title if empty.
        on_layer: whether it acts on a layer; if not, the settings of a layer have no effect.
    """

    title: str
    summary: str
    source: str | type[Method] | None = None
    fixed: Mapping[str, Any] = field(default_factory=dict)
    options: tuple[str, ...] = ()
    needs_labels: bool = False
    second_view: SecondView | None = None
    families: tuple[str, ...] = ()
    label: str = ""
    on_layer: bool = True

    @property
    def factory(self) -> Callable[..., Method] | None:
        """Makes the method; None for the task's loss alone.

        Example:
            >>> METHODS["hinge-1"].factory().norm
            1
        """
        kind: Any = self.source
        if isinstance(kind, str):
            module, _, name = kind.partition(":")
            kind = getattr(import_module(f"atomsep.methods.{module}"), name)
        return partial(kind, **self.fixed) if self.fixed else kind


def _hinge(norm: int) -> Entry:
    summary = f"hinge on triplets: pulls samples of a class closer than other classes, {norm}-norm"
    title, label, fixed = f"Hinge ({norm}-norm)", f"Hinge\n{norm}-norm", {"norm": norm}
    return Entry(title, summary, "hinge:Hinge", fixed, needs_labels=True, label=label)


def _two_views(title: str, summary: str, view: SecondView, *options: str) -> Entry:
    source, options = f"{title.lower()}:{title}", ("temperature", *options)
    return Entry(title, summary, source, options=options, second_view=view)


def _atom(title: str, summary: str, label: str, *left_out: str) -> Entry:
    names = ["norm", "scale", "neutrality", "occupancy", "softening"]
    names += ["charge", "position", "pairs", "tokens", "energy"]
    options = tuple(name for name in names if name not in left_out)
    title = f"Atom Modeling w/o {title}" if left_out else title
    fixed = dict.fromkeys(left_out, 0.0)
    return Entry(title, summary, "atom:Atom", fixed, options, label=label)


METHODS: dict[str, Entry] = {
    "plain": Entry("Plain", "the task's loss alone"),
    "hinge-1": _hinge(1),
    "hinge-2": _hinge(2),
    "rank-h": Entry(
        "Rank-H",
        "hinge on triplets by cosine similarity, with a margin",
        "rank:RankH",
        options=("margin",),
        needs_labels=True,
    ),
    "simclr": _two_views(
        "SimCLR", "tells two augmented views of a sample from all other samples", "augmentation"
    ),
    "simcse": _two_views(
        "SimCSE", "tells a sample under two dropout masks from all other samples", "dropout"
    ),
    "mixcse": _two_views(
        "MixCSE", "SimCSE with negatives mixed from neighbours", "dropout", "mixing"
    ),
    "sscl": Entry(
        *("SSCL", "SimCLR without a second view: spreads the directions of samples"),
        "sscl:SSCL",
        options=("temperature",),
        families=("gan",),
    ),
    "vq": Entry(
        *("VQ", "replaces every token with the nearest of 512 learned codes"),
        "vq:VQ",
        options=("codes", "commitment", "codebook"),
        families=("gan",),
    ),
    "koleo": Entry(
        "KoLeo", "keeps the direction of a sample away from its nearest neighbour's", "koleo:KoLeo"
    ),
    "vicreg": Entry(
        *("VICReg", "keeps features varied and uncorrelated over the samples"),
        "vicreg:VICReg",
        options=("variance", "covariance"),
    ),
    "mode-seeking": Entry(
        "Mode seeking",
        "lets generated images differ as much as the noise that they come from",
        "mode_seeking:ModeSeeking",
        families=("gan",),
        on_layer=False,
    ),
    "atom": _atom(
        "Atom Modeling", "treats samples as atoms that obey Coulomb's law", "atom\nmodeling"
    ),
    "atom-no-neutrality": _atom(
        "constraint 1", "atom modeling without neutrality", "without\nconstraint 1", "neutrality"
    ),
    "atom-no-occupancy": _atom(
        "constraint 2", "atom modeling without occupancy", "without\nconstraint 2", "occupancy"
    ),
    "atom-no-constraints": _atom(
        *("constraint", "the energy of atom modeling alone", "without\nboth"),
        *("neutrality", "occupancy"),
    ),
    "atom-no-energy": _atom(
        "energy", "the constraints of atom modeling alone", "constraints\nalone", "energy"
    ),
}
"""All methods by name, in the order in which tables show them."""

ATOM_MODELING = tuple(name for name in METHODS if name.startswith("atom"))
"""Atom modeling and its ablations."""


def register(
    name: str,
    method: type[Method],
    summary: str,
    *,
    title: str = "",
    label: str = "",
    families: Sequence[str] = (),
    **fixed: Any,
) -> None:
    """Add a method of your own to `METHODS`.

    From then on `make_method`, `atomsep list`, the experiments that provide what the method needs,
    and their tables know it by name. Registering a class again replaces its entry.

    Args:
        name: lowercase letters, digits and hyphens.
        method: a subclass of [`Method`][atomsep.methods.Method]. Its constructor's arguments are
            the options; `features` and `seed` among them are filled in.
        summary: one line for `atomsep list`.
        title: name in tables; by default the method's name.
        label: name in figures, which may have two lines; by default the title.
        families: the only families of experiments that offer it ("synthetic", "gan", "images",
            "text"); empty for all that provide what it needs.
        **fixed: arguments of the class that the name stands for.

    Raises:
        TypeError: `method` is not a subclass of `Method`.
        ValueError: the name does not fit, or another method has it.

    Example:
        >>> from atomsep.methods import Method
        >>> class Spread(Method):
        ...     def __init__(self, power: float = 2.0) -> None:
        ...         super().__init__()
        ...         self.power = power
        ...     def loss(self, latent, labels, mask, second):
        ...         return -latent.flatten(1).std(0).pow(self.power).mean()
        >>> register("spread", Spread, "spreads samples along every feature")
        >>> METHODS["spread"].options
        ('power',)
        >>> make_method("spread", features=8, power=1.0).power
        1.0
        >>> del METHODS["spread"]
    """
    from atomsep.methods.base import Method

    if not (isinstance(method, type) and issubclass(method, Method)):
        raise TypeError(f"method must be a subclass of atomsep.methods.Method, not {method!r}")
    if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", name):
        raise ValueError(f"name must be lowercase letters, digits and hyphens, not {name!r}")
    known = METHODS.get(name)
    # A class that is defined again, as in a notebook, looks the same.
    if known is not None and repr(known.source) != repr(method):
        raise ValueError(f"there is a method {name!r} already; choose another name")
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    parameters = inspect.signature(method).parameters
    arguments = [key for key, parameter in parameters.items() if parameter.kind in named]
    METHODS[name] = Entry(
        title or name,
        summary,
        method,
        fixed=fixed,
        options=tuple(key for key in arguments if key not in {"features", "seed", *fixed}),
        needs_labels=method.needs_labels,
        second_view=method.second_view,
        families=tuple(families),
        label=label,
    )


class OfferedMethods(Sequence[str]):
    """Names of the methods that an experiment offers, "plain" first, in the order of `METHODS`.

    The registry is asked every time, so that methods registered later are among them.

    Args:
        family: the experiment's family: "synthetic", "gan", "images", "text", or your own.
        *provides: what the experiment gives to methods: "labels", "augmentation", "dropout".

    Example:
        >>> list(OfferedMethods("text", "labels", "dropout"))[:6]
        ['plain', 'hinge-1', 'hinge-2', 'rank-h', 'simcse', 'mixcse']
    """

    def __init__(self, family: str, *provides: Literal["labels"] | SecondView) -> None:
        self.family, self.provides = family, provides

    def _names(self) -> list[str]:
        return [
            name
            for name, entry in METHODS.items()
            if (not entry.needs_labels or "labels" in self.provides)
            and (entry.second_view is None or entry.second_view in self.provides)
            and (not entry.families or self.family in entry.families)
        ]

    def __getitem__(self, index: Any) -> Any:
        return self._names()[index]

    def __len__(self) -> int:
        return len(self._names())


def make_method(name: str, *, features: int, seed: int = 0, **options: Any) -> Method | None:
    """A method by its name in `METHODS`; None for "plain".

    Args:
        name: for example "hinge-2" or "atom".
        features: h of the layer's tokens; the length of VQ's codes.
        seed: seed of the random numbers that a method draws (initial codes, sampled pairs and
            tokens). The global generator is left alone.
        **options: the method's own settings, for example `temperature=0.1`.

    Raises:
        ValueError: no method has that name, it has no such option, or a value does not fit.

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
        hint = f"did you mean {close[0]!r}?" if close else f"the methods are {', '.join(METHODS)}"
        raise ValueError(f"there is no method {name!r}; {hint}")
    if features < 1:
        raise ValueError(f"features must be at least 1, not {features!r}")
    entry = METHODS[name]
    unknown = sorted(options.keys() - set(entry.options))
    if unknown:
        allowed = ", ".join(entry.options) or "no options"
        raise ValueError(f"method {name!r} has no option {unknown[0]!r}; it takes {allowed}")
    factory = entry.factory
    if factory is None:
        return None
    known = {"features": features, "seed": seed}
    taken = known.keys() & inspect.signature(factory).parameters.keys()
    return factory(**{key: known[key] for key in taken}, **options)
