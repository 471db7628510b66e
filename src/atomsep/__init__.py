"""Atom modeling for PyTorch: separate latents, read token importance."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from atomsep import functional, importance, methods
    from atomsep.core.backend import use_kernels
    from atomsep.core.loss import AtomLoss
    from atomsep.experiments.trained import load_run
    from atomsep.hooks.attaching import attach
    from atomsep.hooks.attachment import Attachment
    from atomsep.hooks.copies import attachments
    from atomsep.hooks.layers import Layer, Layers, layers
    from atomsep.hooks.watch import AtomWarning

__all__ = [
    "AtomLoss",
    "AtomWarning",
    "Attachment",
    "Layer",
    "Layers",
    "attach",
    "attachments",
    "functional",
    "importance",
    "layers",
    "load_run",
    "methods",
    "use_kernels",
]
__version__ = "0.1.0"

_HOMES = {
    "AtomLoss": "core.loss",
    "AtomWarning": "hooks.watch",
    "Attachment": "hooks.attachment",
    "Layer": "hooks.layers",
    "Layers": "hooks.layers",
    "attach": "hooks.attaching",
    "attachments": "hooks.copies",
    "layers": "hooks.layers",
    "load_run": "experiments.trained",
    "use_kernels": "core.backend",
}
_MODULES = ("functional", "importance", "methods")


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: the command line starts without torch."""
    if name in _MODULES:
        return import_module(f"atomsep.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'atomsep' has no attribute {name!r}")
    value = getattr(import_module(f"atomsep.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
