"""A user's own modules and functions, by name. The current folder is searched too."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Iterable
from types import ModuleType
from typing import TYPE_CHECKING, Any

from atomsep.experiments.errors import ExperimentError, unknown

if TYPE_CHECKING:
    from torch import nn

IMPORTED: list[str] = []
"""Modules that `import_extensions` has imported; the processes of a sweep import them too."""


def import_extensions(names: Iterable[str]) -> None:
    """Import modules that register experiments or methods; see `register_experiment`.

    Raises:
        ExperimentError: one of them cannot be imported.
    """
    for name in names:
        _import("--import ", name, name)
        if name not in IMPORTED:
            IMPORTED.append(name)


def is_entry_point(text: str) -> bool:
    """Whether a text has the form `package.module:function`.

    Example:
        >>> is_entry_point("my_models.small:make"), is_entry_point("resnet18")
        (True, False)
    """
    module, colon, function = text.partition(":")
    return bool(colon) and function.isidentifier() and all(map(str.isidentifier, module.split(".")))


def call_entry_point(key: str, text: str, **arguments: Any) -> Any:
    """What the function that `package.module:function` names returns.

    Args:
        key: the name of the setting, for messages; "" for an argument of the command line.
        text: its value.
        **arguments: arguments of the function.

    Raises:
        ExperimentError: there is no such module, no such function in it, or it raises.

    Example:
        >>> call_entry_point("model", "torch.nn:Linear", in_features=2, out_features=3)
        Linear(in_features=2, out_features=3, bias=True)
    """
    option, (module, _, function) = f"{key}=" if key else "", text.partition(":")
    found = _import(option, text, module)
    if not hasattr(found, function):
        raise unknown("function", function, _own_functions(found), f"in {module}")
    entry = getattr(found, function)
    if not callable(entry):
        raise ExperimentError(f"{option}{text} must be a function, not {type(entry).__name__}")
    try:
        return entry(**arguments)
    except Exception as error:  # of the user's code, which may raise anything
        raise ExperimentError(
            f"{option}{text} failed ({type(error).__name__}: {error}); --debug shows where"
        ) from error


def make_module(key: str, text: str, **arguments: Any) -> nn.Module:
    """The module that the function that `package.module:function` names returns.

    Raises:
        ExperimentError: it cannot be loaded, it raises, or it returns something else.
    """
    from torch import nn

    made = call_entry_point(key, text, **arguments)
    if not isinstance(made, nn.Module):
        raise ExperimentError(
            f"{key}={text} must return a torch.nn.Module, not {type(made).__name__}"
        )
    return made


def is_module(text: str) -> bool:
    """Whether a text is the name of a module that can be imported, which this does not do.

    Example:
        >>> is_module("difflib"), is_module("no_such_module"), is_module("a/b")
        (True, False, False)
    """
    if not all(map(str.isidentifier, text.split("."))):
        return False
    _search_here()
    try:
        found = importlib.util.find_spec(text)
    except Exception:  # of a package around it, which is imported and may raise anything
        return False
    return found is not None and found.origin is not None  # not just a folder


def _own_functions(module: ModuleType) -> list[str]:
    """The functions and classes of a module or package, without those it imports from others."""
    public = {name: value for name, value in vars(module).items() if not name.startswith("_")}
    return [
        name
        for name, value in public.items()
        if callable(value)
        and f"{getattr(value, '__module__', '')}.".startswith(f"{module.__name__}.")
    ]


def _search_here() -> None:
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)  # a console script searches its own folder instead


def _import(option: str, text: str, module: str) -> ModuleType:
    _search_here()
    try:
        return importlib.import_module(module)
    except ExperimentError:
        raise
    except Exception as error:  # a module may raise anything while it is imported
        reason = (
            str(error) if isinstance(error, ImportError) else f"{type(error).__name__}: {error}"
        )
        raise ExperimentError(
            f"{option}{text}: the module cannot be imported ({reason}); run the command in the "
            f"folder that holds it, or install it"
        ) from error
