"""What a layer's output holds, where it is not a tensor: tuples, lists, mappings, dataclasses."""

from __future__ import annotations

import copy
from collections.abc import Hashable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from torch import Tensor
from torch.nn.utils.rnn import PackedSequence


def entries_of(output: Any) -> dict[Any, Any] | None:
    """The values in an output by key, index or field name; None if it is no such container.

    Example:
        >>> entries_of(("a", "b")), entries_of("a")
        ({0: 'a', 1: 'b'}, None)
    """
    if isinstance(output, Mapping):
        return dict(output.items())
    if isinstance(output, (tuple, list)):
        return dict(enumerate(output))
    if is_dataclass(output) and not isinstance(output, type):
        return {field.name: getattr(output, field.name, None) for field in fields(output)}
    return None


def find_key(output: Any, entries: Mapping[Any, Any], select: Any) -> Any:
    """The key of the entry that an index, a key or the name of a field refers to; None if none.

    Example:
        >>> find_key(("a", "b"), {0: "a", 1: "b"}, -1)
        1
    """
    keys = list(entries)
    names = getattr(output, "_fields", ())
    if isinstance(output, tuple) and isinstance(select, str) and select in names:
        return names.index(select)
    if isinstance(select, int) and -len(keys) <= select < len(keys):
        return keys[select]
    return select if isinstance(select, Hashable) and select in entries else None


def with_entry(output: Any, key: Any, value: Any) -> Any:
    """A copy of an output with another value at a key of `entries_of`."""
    if isinstance(output, Mapping):
        changed: Any = copy.copy(output)
        changed[key] = value
        return changed
    if isinstance(output, (tuple, list)):
        values = list(output)
        values[key] = value
        if isinstance(output, list):
            return values
        return type(output)(*values) if hasattr(output, "_fields") else tuple(values)
    changed = copy.copy(output)
    object.__setattr__(changed, key, value)  # it may be frozen
    return changed


def describe(output: Any, entries: Mapping[Any, Any]) -> str:
    """The keys with the shapes of tensors and the types of everything else.

    Example:
        >>> describe((1, "a"), {0: 1, 1: "a"})
        '0: int, 1: str'
    """
    names = dict(enumerate(getattr(output, "_fields", ()) if isinstance(output, tuple) else ()))
    shown = (
        f"{names.get(key, key)!r}: "
        f"{tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__}"
        for key, value in entries.items()
    )
    return ", ".join(shown) or "nothing"


def may_hold_tokens(value: Any) -> bool:
    """Whether it is a tensor of numbers with at least three axes."""
    return isinstance(value, Tensor) and value.is_floating_point() and value.dim() >= 3


def is_packed(value: Any) -> bool:
    """Whether it holds sequences of different lengths without padding, one step after another."""
    return isinstance(value, PackedSequence)
