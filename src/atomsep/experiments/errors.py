"""What can go wrong with an experiment, as a sentence for the person at the command line."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class ExperimentError(Exception):
    """A run cannot start or go on; the message says why, and what to do."""


MOST = 24
"""Names that a message lists."""


def unknown(kind: str, name: str, known: Iterable[str], where: str = "") -> ExperimentError:
    """The error for a name that nothing has, with the nearest that something has.

    Example:
        >>> print(unknown("method", "atm", ["atom", "plain"], "for synthetic"))
        there is no method 'atm' for synthetic; did you mean 'atom'? There are: atom, plain
    """
    names = list(known)
    near = difflib.get_close_matches(name, names, 1, cutoff=0.5)
    hint = f"; did you mean {near[0]!r}?" if near else "."
    listed = ", ".join(names[:MOST]) + (" and others" if len(names) > MOST else "")
    there = f" There are: {listed}" if names else ""
    return ExperimentError(f"there is no {kind} {name!r}{where and ' '}{where}{hint}{there}")
