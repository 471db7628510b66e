"""Which calls around a layer bring the mask of its tokens, by the names of their arguments."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

from torch import Tensor, nn

MaskSource = (
    str | Callable[[tuple[Any, ...], dict[str, Any]], Tensor | None] | Literal[False] | None
)

ATTENTION_MASK = "attention_mask"
"""The argument that holds the mask by the Hugging Face convention, true on real tokens."""

_DECODER_MASK = "decoder_attention_mask"
"""The same for the second input of an encoder-decoder, whose attention_mask is the encoder's."""

_SOURCE_MASK, _TARGET_MASK = "src_key_padding_mask", "tgt_key_padding_mask"
"""PyTorch's names for the two inputs; true on padding."""

_INPUTS = {
    "text": ("input_ids", "text", "tokens", "caption", "words"),
    "image": ("pixel_", "image", "video"),
    "audio": ("input_features", "input_values", "audio"),
}
"""How the names of arguments begin that hold one kind of input."""


def true_on_padding(argument: str) -> bool:
    """Whether a mask of this name marks padding, by PyTorch's convention."""
    return argument.endswith("key_padding_mask")


class Host(NamedTuple):
    """A module whose call may bring the layer's mask.

    Attributes:
        module: the module, on the way from the model to the layer.
        source: the name of its argument, or a callable of `(args, kwargs)`.
        sure: whether the mask belongs to the layer's tokens. A model with several kinds of input
            (text and images) does not tell, unless a module on the way takes only one of them.
        complete: whether its call shows all masks there are: no module around it takes one, or it
            takes what the model is given (`input_ids`).
    """

    module: nn.Module
    source: Any
    sure: bool = True
    complete: bool = True


def modules_around(model: nn.Module, layer: nn.Module) -> list[nn.Module]:
    """The modules that contain the layer, outermost first, and the layer itself."""
    modules = (module for way, _ in _ways(model, layer) for module in way)
    return list({id(module): module for module in modules}.values())


def find_mask_hosts(model: nn.Module, layer: nn.Module, source: MaskSource) -> list[Host]:
    """The modules whose calls bring the layer's mask, outermost first.

    None looks for the names of Hugging Face and PyTorch, from the model down to the layer. A name
    must be an argument of the model or of a module around the layer.

    Raises:
        TypeError: the source is a mask, or something else.
        ValueError: nothing around the layer takes an argument of that name.
    """
    if source is False:
        return []
    given: Any = source
    if not (given is None or isinstance(given, str) or callable(given)):
        got = "a tensor" if isinstance(given, Tensor) else repr(given)
        raise TypeError(
            f"mask must be None, False, the name of an argument, or a callable (args, kwargs) -> "
            f"mask, not {got}: each batch has a mask of its own"
        )
    if callable(source):
        return [Host(model, source)]
    found: dict[int, Host] = {}
    for modules, names in _ways(model, layer):
        for host in _hosts_on(modules, names, source):
            known = found.setdefault(id(host.module), host)
            if known.source != host.source:  # the layer is part of the encoder and the decoder
                found[id(host.module)] = known._replace(sure=False)
    if not found and source is not None:
        taken = [p for p in parameters_of(model) if p != "self"]
        raise ValueError(
            f"mask={source!r} is not an argument of the model's forward, which takes "
            f"{', '.join(taken)}, or of a module around the layer"
        )
    return list(found.values())


def _ways(model: nn.Module, layer: nn.Module) -> list[tuple[list[nn.Module], list[str]]]:
    """Each way from the model to the layer: the modules, and the names between them."""
    modules = dict(model.named_modules(remove_duplicate=False))
    ways = []
    for name in [name for name, module in modules.items() if module is layer]:
        parts = name.split(".") if name else []
        way = [modules[".".join(parts[:depth])] for depth in range(len(parts) + 1)]
        ways.append((way, parts))
    return ways


def _hosts_on(modules: list[nn.Module], names: list[str], source: str | None) -> list[Host]:
    """The hosts on one way to the layer."""
    hosts: list[Host] = []
    wrappers: list[nn.Module] = []  # in front of the first host, called with what it gets
    for depth, module in enumerate(modules):
        parameters = parameters_of(module)
        side = next((side for name in names[depth:] if (side := _side(name))), None)
        argument = _argument(parameters, side, source)
        if argument is None:
            if not hosts and _takes_anything(module):
                wrappers.append(module)
            continue
        belongs: bool | None = True
        if source is None:
            belongs = _belongs(argument, parameters, side, modules[depth + 1 :])
        if belongs is False:
            hosts, wrappers = [], []
        else:
            complete = not hosts or bool(_kinds(parameters))
            hosts.append(Host(module, argument, belongs is True, complete))
    if hosts:
        return [*(hosts[0]._replace(module=module) for module in wrappers), *hosts]
    if source in (None, ATTENTION_MASK):
        # A model that needs no mask, as recurrent ones do not, may be given one all the same.
        kinds = [_kinds(parameters_of(module)) for module in wrappers]
        pairs = zip(wrappers, kinds, strict=True)
        return [Host(module, ATTENTION_MASK) for module, kind in pairs if kind == {"text"}]
    return []


def _argument(parameters: Sequence[str], side: str | None, source: str | None) -> str | None:
    """The argument that holds the mask of a layer in the encoder, the decoder or neither."""
    if source not in (None, ATTENTION_MASK):
        return source if source in parameters else None
    if _DECODER_MASK in parameters and side != "encoder":
        return _DECODER_MASK
    if ATTENTION_MASK in parameters or source is not None:
        return ATTENTION_MASK if ATTENTION_MASK in parameters else None
    if side == "decoder" and _TARGET_MASK in parameters:
        return _TARGET_MASK
    known = (_SOURCE_MASK, _TARGET_MASK, "key_padding_mask")
    return next((name for name in known if name in parameters), None)


def _side(name: str) -> str | None:
    if "encoder" in name or name.startswith("src"):
        return "encoder"
    return "decoder" if "decoder" in name or name.startswith("tgt") else None


def _belongs(
    argument: str, parameters: Sequence[str], side: str | None, below: list[nn.Module]
) -> bool | None:
    """Whether an argument masks the tokens of the modules below; None if that is not certain."""
    if side is None and {_SOURCE_MASK, _TARGET_MASK} <= set(parameters):
        return None
    kinds = {"text"} if argument == _DECODER_MASK else _kinds(parameters)
    if not kinds:
        return True
    certain = len(kinds) == 1
    masked = kinds if certain else {"text"}
    for taken in map(_kinds, map(parameters_of, below)):
        if taken and not taken & masked:
            return False
        certain = certain or taken == masked
    return True if certain else None


def _kinds(parameters: Sequence[str]) -> set[str]:
    return {
        kind for kind, starts in _INPUTS.items() if any(p.startswith(starts) for p in parameters)
    }


def parameters_of(module: nn.Module) -> list[str]:
    """Names of the arguments of a module's forward."""
    return list(inspect.signature(module.forward).parameters)


def _takes_anything(module: nn.Module) -> bool:
    """Whether a module takes keyword arguments that it does not name, as wrappers do."""
    kinds = {p.kind for p in inspect.signature(module.forward).parameters.values()}
    return inspect.Parameter.VAR_KEYWORD in kinds
