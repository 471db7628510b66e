"""What can go wrong with an experiment, as a sentence for the person at the command line."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class ExperimentError(Exception):
    """A run cannot start or continue; the message says why, and what to do."""


class StoppedError(Exception):
    """A run was asked to stop, and can continue from its checkpoint."""


MOST = 24
"""Names that a message lists at most."""


def unknown(kind: str, name: str, known: Iterable[str], where: str = "") -> ExperimentError:
    """The error for an unknown name, with the closest known one.

    Example:
        >>> print(unknown("method", "atm", ["atom", "plain"], "for synthetic"))
        there is no method 'atm' for synthetic; did you mean 'atom'? Available: atom, plain
    """
    names = list(known)
    near = difflib.get_close_matches(name, names, 1, cutoff=0.5)
    hint = f"; did you mean {near[0]!r}?" if near else "."
    listed = ", ".join(names[:MOST]) + (" and others" if len(names) > MOST else "")
    available = f" Available: {listed}" if names else ""
    return ExperimentError(f"there is no {kind} {name!r}{where and ' '}{where}{hint}{available}")
