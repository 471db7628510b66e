"""Refuse attributes that an object does not have, so that a misspelt setting is not lost."""

from __future__ import annotations

import difflib
from typing import Any


class KnownNames:
    """A class whose objects take no other public attributes than it declares.

    Its annotations, methods and properties declare them; private names are free, and so are all
    names in a subclass that does not list this class as a base of its own.

    Example:
        >>> class Settings(KnownNames):
        ...     weight: float
        >>> Settings().wieght = 0.5
        Traceback (most recent call last):
        AttributeError: Settings has no attribute 'wieght'; did you mean 'weight'?
    """

    def __setattr__(self, name: str, value: Any) -> None:
        kind = type(self)
        free = name.startswith("_") or KnownNames not in kind.__bases__
        if not (free or hasattr(kind, name) or name in kind.__annotations__):
            known = {*kind.__annotations__, *dir(kind)}
            public = sorted(each for each in known if not each.startswith("_"))
            near = difflib.get_close_matches(name, public, 1)
            hint = f"; did you mean {near[0]!r}?" if near else f". It has {', '.join(public)}"
            raise AttributeError(f"{kind.__name__} has no attribute {name!r}{hint}")
        super().__setattr__(name, value)
