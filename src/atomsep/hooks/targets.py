"""Find the layers to attach to, and the tensor in what they return."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Any, cast

from torch import Tensor, nn

from atomsep.hooks.containers import (
    describe,
    entries_of,
    find_key,
    is_packed,
    may_hold_tokens,
    with_entry,
)

Target = str | nn.Module | Sequence[str | nn.Module]
Key = int | str | None

_INSIDE = ("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")
"""Names of the module inside compiled, sharded and checkpointed wrappers."""

_FABRIC = "_forward_module"
"""The module inside the wrapper of Fabric, which also has it as `_original_module`."""

_WRAPPERS = {"module", *_INSIDE, _FABRIC, "_original_module"}
"""Names that these and data-parallel wrappers insert."""


def unwrap(model: Any) -> nn.Module:
    """The model inside compiled and data-parallel wrappers, and that of Fabric."""
    while True:
        if hasattr(model, "_orig_mod"):
            model = model._orig_mod
        elif isinstance(model, nn.parallel.DistributedDataParallel):
            model = model.module
        elif _FABRIC in getattr(model, "_modules", {}):
            model = model._modules[_FABRIC]
        else:
            return cast(nn.Module, model)


def innermost(module: nn.Module) -> nn.Module:
    """The module inside the wrappers that keep its output as it is."""
    while True:
        inside = [module._modules[name] for name in _INSIDE if name in module._modules]
        if isinstance(module, nn.parallel.DistributedDataParallel):
            inside = [module.module]
        if not inside or inside[0] is None:
            return module
        module = inside[0]


def module_at(model: nn.Module, name: str) -> nn.Module | None:
    """The module that a name refers to at present, whatever wraps the modules on the way.

    None where nothing has that name. A wrapper that keeps the output of what it wraps as it is
    (compiled, sharded, checkpointed) counts as the module inside.
    """
    module = innermost(model)
    for part in name.split("."):
        child = module._modules.get(part)
        if child is None and part in _WRAPPERS:
            continue  # the wrapper itself was stepped through
        if child is None and list(module._modules) == ["module"]:
            child = module.get_submodule("module")._modules.get(part)
        if child is None:
            return None
        module = innermost(child)
    return module


def find_layers(model: nn.Module, target: Target) -> dict[str, nn.Module]:
    """The modules that a target refers to, by dotted name.

    Args:
        model: where to look.
        target: a dotted name, a glob over dotted names (`*` matches dots too), a module of the
            model, or a list of these. The `module.`, `_orig_mod.` and
            `_forward_module.` of wrapped models are optional.

    A wrapper and the module inside it are one layer: the one inside.

    Raises:
        TypeError: a part of the target is neither a name nor a module.
        ValueError: a part of the target matches nothing, or the model is a DataParallel.

    Example:
        >>> mlp = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 2), nn.ReLU()))
        >>> list(find_layers(mlp, "*0"))
        ['0', '1.0']
    """
    if any(isinstance(module, nn.DataParallel) for module in model.modules()):
        raise ValueError(
            "nn.DataParallel runs a copy of the model per device, and the latents of different "
            "copies never meet; use torch.nn.parallel.DistributedDataParallel, or attach to the "
            "model itself and run it on one device"
        )
    modules = dict(model.named_modules(remove_duplicate=False))
    names = {name: _plain(name) for name in modules}
    different = {(plain, id(modules[name])) for name, plain in names.items()}
    clashing = {plain for plain, times in Counter(p for p, _ in different).items() if times > 1}
    layers: dict[str, nn.Module] = {}
    for entry in _entries_of(target, modules):
        if isinstance(entry, nn.Module):
            found = [name for name, module in modules.items() if module is entry][:1]
        elif entry in modules:
            found = [entry]
        else:
            found = [name for name, plain in names.items() if entry == plain]
            found = found or [
                name for name, plain in names.items() if plain and fnmatchcase(plain, entry)
            ]
        if not found:
            raise ValueError(_no_match(entry, list(names.values())))
        for name in found:
            layer = modules[name] if isinstance(entry, nn.Module) else innermost(modules[name])
            shown = name if names[name] in clashing else names[name]
            if not any(layer is known for known in layers.values()):
                layers[shown or type(model).__name__] = layer
    return layers


def _entries_of(target: Any, modules: dict[str, nn.Module]) -> list[str | nn.Module]:
    """The parts of a target, each a name or a module."""
    entries = list(target) if isinstance(target, (list, tuple, set, dict)) else [target]
    if not entries:
        raise ValueError("the target is an empty list; name at least one layer")
    for entry in entries:
        if not isinstance(entry, (str, nn.Module)):
            hint = f"; did you mean {str(entry)!r}?" if str(entry) in modules else ""
            raise TypeError(
                f"the target must be the dotted name of a layer, a glob, a module of the model, or "
                f"a list of these, not {entry!r}{hint}"
            )
    return entries


def _plain(name: str) -> str:
    return ".".join(part for part in name.split(".") if part not in _WRAPPERS)


def _no_match(entry: str | nn.Module, names: list[str]) -> str:
    if isinstance(entry, nn.Module):
        return f"this {type(entry).__name__} is not a module of the model"
    known = sorted({name for name in names if name})
    near = difflib.get_close_matches(entry, known, n=3, cutoff=0.5)
    near = near or [name for name in known if name.endswith(entry.rsplit(".", 1)[-1])][:3]
    if near:
        return f"layer {entry!r} matches nothing; did you mean {' or '.join(map(repr, near))}?"
    shown = ", ".join(known[:8]) + (", ..." if len(known) > 8 else "")
    return f"layer {entry!r} matches nothing; the model's layers are: {shown}"


_ELSEWHERE = (
    "attach to a module inside it that returns one, or pass the tensor through an nn.Identity() of "
    "the model and attach to that"
)

_PACKED = (
    "layer {!r} returns a PackedSequence, which has no axis for the samples; attach to a module "
    "after pad_packed_sequence, for example an nn.Identity() through which the padded sequence goes"
)


def pick_tensor(output: Any, select: Key, name: str) -> tuple[Key, Tensor]:
    """The latent in a layer's output, and its key there.

    Without `select`, the output is the latent if it is a tensor. Otherwise a latent is a
    floating-point tensor with at least three axes: the first entry of a tuple, mapping or
    dataclass, as in recurrent, attention and Hugging Face layers, `last_hidden_state`, or the only
    one there is.

    Raises:
        ValueError: there is no such tensor or more than one, or `select` finds none.
    """
    if isinstance(output, Tensor):
        if select is not None:
            raise ValueError(
                f"select={select!r} was passed, but layer {name!r} returns a single tensor; "
                f"leave it out"
            )
        return None, output
    entries, kind = entries_of(output), type(output).__name__
    if entries is None:
        raise ValueError(
            f"layer {name!r} returns a {kind}, but must return a tensor, or a tuple, list, mapping "
            f"or dataclass with tensors; {_ELSEWHERE}"
        )
    fitting = [key for key, value in entries.items() if may_hold_tokens(value)]
    key = find_key(output, entries, 0 if select is None else select)
    if is_packed(output) or is_packed(entries.get(key)):
        raise ValueError(_PACKED.format(name))
    none = "Nothing in it is a floating-point tensor with at least three axes"
    elsewhere = "" if fitting else f". {none}; {_ELSEWHERE}"
    if select is not None:
        if not isinstance(entries.get(key), Tensor):
            raise ValueError(
                f"select={select!r} finds no tensor in the output of layer {name!r}, "
                f"which contains {describe(output, entries)}{elsewhere}"
            )
        return key, entries[key]
    first = () if isinstance(output, list) else (key,)
    for key in ("last_hidden_state", *first):
        if key in fitting:
            return key, entries[key]
    if len(fitting) != 1:
        which = elsewhere or "; pass select= to say which one holds the tokens"
        raise ValueError(f"layer {name!r} returns a {kind} with {describe(output, entries)}{which}")
    return fitting[0], entries[fitting[0]]


def put_tensor(output: Any, key: Key, tensor: Tensor) -> Any:
    """The output with another tensor at `key`."""
    return tensor if key is None else with_entry(output, key, tensor)
