"""Copies of attached models, and of their parts.

A copy of the whole model carries a copy of its attachment. A copy of a part (`torch.save` of a
backbone) must carry neither the rest of the model nor a hook that acts. So the hooks on the layers
do not refer to the attachment when they are copied. The model that was passed to `attach` has a
list of its attachments in its `__dict__`; where that is copied too, each attachment links its
hooks again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn

from atomsep.hooks.tap import LayerTap

if TYPE_CHECKING:
    from atomsep.hooks.attachment import Attachment

_LIST = "_atomsep_attachments"


def attachments(model: nn.Module) -> list[Attachment]:
    """The attachments of a model, for example of a copied or unpickled one.

    Example:
        >>> import atomsep, copy
        >>> model = nn.Sequential(nn.Linear(3, 8), nn.ReLU())
        >>> attachment = atomsep.attach(model, "0")
        >>> [copied] = attachments(copy.deepcopy(model))
        >>> copied is attachment
        False
    """
    hooks = (hook for module in model.modules() for hook in module._forward_hooks.values())
    taps = (hook for hook in hooks if isinstance(hook, LayerTap) and hook.linked)
    return list(dict.fromkeys(tap.attachment for tap in taps))


def clear(layer: nn.Module) -> None:
    """Take off a layer the hooks that came with the copy of a part, and belong to nothing."""
    for key, hook in list(layer._forward_hooks.items()):
        if isinstance(hook, LayerTap) and not hook.linked:
            del layer._forward_hooks[key]


def keep(model: nn.Module, attachment: Attachment) -> None:
    """Add an attachment to the model's list."""
    vars(model).setdefault(_LIST, []).append(attachment)


def drop(model: nn.Module, attachment: Attachment) -> None:
    """Take it off again, and the list with the last one."""
    rest = [each for each in vars(model).get(_LIST, []) if each is not attachment]
    vars(model).pop(_LIST, None)
    if rest:
        vars(model)[_LIST] = rest
