"""Notice a layer whose place in the model another module has taken since it was attached to."""

from __future__ import annotations

from torch import nn

from atomsep.hooks.targets import innermost, module_at


def why_replaced(model: nn.Module, name: str, layer: nn.Module) -> str:
    """What took the layer's place, as the end of a sentence; empty if nothing did.

    Wrappers that keep a layer's output as it is (compiled, sharded, checkpointed) do not count.
    Others change it, as LoRA does, whose part the hook on the layer inside would not see.
    """
    there = module_at(model, name)
    if there is None or there is innermost(layer) or model is layer:
        return ""
    kind = f"{type(there).__module__.split('.')[0]}'s {type(there).__name__}"
    if any(part is layer for part in there.modules()):
        inside = next(part for part, module in there.named_modules() if module is layer)
        return (
            f"was wrapped in {kind} after it was attached to, so the loss does not see what the "
            f"wrapper adds: call attachment.detach() and attach after wrapping (to "
            f"'{name}.{inside}' if you want what is inside)"
        )
    return (
        f"was replaced by {kind} after it was attached to: call attachment.detach() and attach "
        f"after replacing layers"
    )
