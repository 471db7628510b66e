"""Find a user's own function by `package.module:function`."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from typing import Any

from atomsep.experiments.errors import ExperimentError, unknown


def is_entry_point(text: str) -> bool:
    """Whether a text has the form `package.module:function`.

    Example:
        >>> is_entry_point("my_models.small:make"), is_entry_point("resnet18")
        (True, False)
    """
    module, colon, function = text.partition(":")
    return bool(colon) and function.isidentifier() and all(map(str.isidentifier, module.split(".")))


def load_entry_point(key: str, text: str) -> Callable[..., Any]:
    """The function that `package.module:function` names; the current folder is searched too.

    Args:
        key: of the setting, for messages.
        text: its value.

    Raises:
        ExperimentError: there is no such module, or nothing of that name in it.

    Example:
        >>> load_entry_point("model", "torch.nn:Linear").__name__
        'Linear'
    """
    module, _, function = text.partition(":")
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)  # a console script searches its own folder instead
    try:
        found = importlib.import_module(module)
    except ImportError as error:
        raise ExperimentError(
            f"{key}={text}: the module cannot be imported ({error}); run the command in the folder "
            f"that holds it, or install it"
        ) from error
    if not hasattr(found, function):
        names = [name for name in vars(found) if not name.startswith("_")]
        raise unknown("function", function, names, f"in {module}")
    entry: Callable[..., Any] = getattr(found, function)
    return entry
