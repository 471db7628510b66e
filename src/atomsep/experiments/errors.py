"""What can go wrong with an experiment, as a sentence for the person at the command line."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType


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
    near = closest(name, names, cutoff=0.6)
    hint = "." if near is None else f"; did you mean {near!r}?"
    listed = ", ".join(names[:MOST]) + (" and others" if len(names) > MOST else "")
    available = f" Available: {listed}" if names else ""
    return ExperimentError(f"there is no {kind} {name!r}{where and ' '}{where}{hint}{available}")


def closest(name: str, names: Sequence[str], cutoff: float = 0.8) -> str | None:
    """The name that is meant, also by its initials; None if none is close.

    Example:
        >>> closest("lr", ["epochs", "learning_rate"])
        'learning_rate'
    """
    near = [each for each in names if len(name) > 1 and _initials(each) == name.lower()]
    near = near or difflib.get_close_matches(name, names, 1, cutoff=cutoff)
    return near[0] if near else None


def _initials(name: str) -> str:
    return "".join(part[:1] for part in re.split(r"[_-]", name))


@contextmanager
def layer_errors() -> Iterator[None]:
    """A block in which a hook's complaint about its layer becomes an error of the experiment.

    Example:
        >>> with layer_errors():
        ...     raise ValueError("not about a layer")
        Traceback (most recent call last):
        ValueError: not about a layer
    """
    try:
        yield
    except (TypeError, ValueError) as error:
        if not _from_hooks(error.__traceback__):
            raise
        raise ExperimentError(as_settings(str(error))) from error


def as_settings(message: str) -> str:
    """What `attach` advises, in the words of the command line.

    Example:
        >>> as_settings('the axis is not certain; pass layout="length_first" for (L, M, C)')
        'the axis is not certain; pass --set layout=length_first for (L, M, C)'
        >>> as_settings("layer 'fc' has no token axis")
        "layer 'fc' has no token axis. Choose another layer with --set layer=NAME"
    """
    words = re.sub(r'layout="(\w+)"', r"--set layout=\1", message)
    if words == message and "did you mean" not in message:
        words += ". Choose another layer with --set layer=NAME"
    return words


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """An error and those that led to it, the last one first.

    Example:
        >>> try:
        ...     raise RuntimeError("no batch") from MemoryError("no memory")
        ... except RuntimeError as error:
        ...     [str(each) for each in causes(error)]
        ['no batch', 'no memory']
    """
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _from_hooks(traceback: TracebackType | None) -> bool:
    """Whether the code that attaches to layers is among the callers."""
    while traceback is not None:
        if str(traceback.tb_frame.f_globals.get("__name__")).startswith("atomsep.hooks."):
            return True
        traceback = traceback.tb_next
    return False
