"""Keep torch.compile from running a graph that was compiled without the hooks.

It shares graphs between the models of a class and does not check whether they have hooks. It does
check what a module stores itself. So each module with a hook stores its `forward`, the one of its
class, which would be found anyway.
"""

from __future__ import annotations

from collections.abc import Iterable
from types import MethodType
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

from torch import nn

from atomsep.hooks.switch import Hook

_STORED: WeakKeyDictionary[nn.Module, Any] = WeakKeyDictionary()
"""The functions that modules store; a class may get another one later."""

_OF_CLASSES: WeakSet[Any] = WeakSet()
"""The same functions, for copies of those modules."""


def mark(module: nn.Module) -> None:
    """Store the module's `forward` in the module."""
    if "forward" in vars(module):
        return
    forward: Any = module.forward
    vars(module)["forward"] = forward
    if isinstance(forward, MethodType):
        _STORED[module] = forward.__func__
        _OF_CLASSES.add(forward.__func__)


def unmark(module: nn.Module) -> None:
    """Remove it again, once no attachment has a hook on the module."""
    hooks: Iterable[Any] = (*module._forward_hooks.values(), *module._forward_pre_hooks.values())
    if not any(isinstance(hook, Hook) and hook.marks for hook in hooks) and _stored(module):
        del vars(module)["forward"]
        _STORED.pop(module, None)


def why_outdated(module: nn.Module) -> str:
    """What a module misses of its class, as the end of a sentence; empty if nothing."""
    forward: Any = module.forward
    if not _stored(module) or forward.__func__ is type(module).forward:
        return ""
    return (
        f"belongs to an attached {type(module).__name__} that still runs the old forward of its "
        f"class, which was replaced after it was attached to: call attachment.detach(), and attach "
        f"again"
    )


def _stored(module: nn.Module) -> bool:
    """Whether the module's `forward` was stored by `mark`, or might have been."""
    forward: Any = vars(module).get("forward")
    if not (isinstance(forward, MethodType) and forward.__self__ is module):
        return False
    function = forward.__func__
    if module in _STORED:
        return function is _STORED[module]
    return function is type(module).forward or function in _OF_CLASSES
