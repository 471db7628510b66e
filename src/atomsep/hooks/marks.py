"""Keep torch.compile from running a graph that was compiled without the hooks.

It shares graphs between the models of a class and does not check whether they have hooks. It does
check what a module stores itself. So each module with a hook stores its `forward`, the one of its
class, which would be found anyway.
"""

from __future__ import annotations

from types import MethodType

from torch import nn

from atomsep.hooks.masks import MaskTap
from atomsep.hooks.tap import LayerTap


def mark(module: nn.Module) -> None:
    """Store the module's `forward` in the module."""
    vars(module).setdefault("forward", module.forward)


def unmark(module: nn.Module) -> None:
    """Remove it again, once no attachment has a hook on the module."""
    hooks = (*module._forward_hooks.values(), *module._forward_pre_hooks.values())
    ours = any(isinstance(hook, (LayerTap, MaskTap)) for hook in hooks)
    own = MethodType(type(module).forward, module)
    if not ours and vars(module).get("forward") == own:
        del vars(module)["forward"]
