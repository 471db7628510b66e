"""Atom modeling and the methods to compare it with, behind one interface."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from atomsep.methods.registry import ATOM_MODELING, METHODS, Entry, make_method, register

if TYPE_CHECKING:
    from atomsep.methods.atom import Atom
    from atomsep.methods.base import Method
    from atomsep.methods.binding import Binding
    from atomsep.methods.hinge import Hinge
    from atomsep.methods.koleo import KoLeo
    from atomsep.methods.mixcse import MixCSE
    from atomsep.methods.mode_seeking import ModeSeeking
    from atomsep.methods.rank import RankH
    from atomsep.methods.simclr import SimCLR
    from atomsep.methods.simcse import SimCSE
    from atomsep.methods.sscl import SSCL
    from atomsep.methods.vicreg import VICReg
    from atomsep.methods.vq import VQ

__all__ = [
    "ATOM_MODELING",
    "METHODS",
    "SSCL",
    "VQ",
    "Atom",
    "Binding",
    "Entry",
    "Hinge",
    "KoLeo",
    "Method",
    "MixCSE",
    "ModeSeeking",
    "RankH",
    "SimCLR",
    "SimCSE",
    "VICReg",
    "make_method",
    "register",
]

_SOURCES = [entry.source for entry in METHODS.values() if isinstance(entry.source, str)]
_HOMES = {name: module for module, _, name in (source.partition(":") for source in _SOURCES)}
_HOMES |= {"Method": "base", "Binding": "binding"}


def __getattr__(name: str) -> Any:
    """Import a class when it is first used: the table of methods does without torch."""
    if name not in _HOMES:
        raise AttributeError(f"module 'atomsep.methods' has no attribute {name!r}")
    return getattr(import_module(f"atomsep.methods.{_HOMES[name]}"), name)
