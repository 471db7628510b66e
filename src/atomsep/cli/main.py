"""Where the command line starts: errors become sentences, and exit codes tell them apart.

Hardly anything is imported before `main` runs, so that it answers Ctrl-C during imports too.
"""

from __future__ import annotations

import os
import sys
import traceback
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

from atomsep.cli.printable import printable
from atomsep.experiments.errors import ExperimentError, as_settings

FAILED, MISUSED, STOPPED = 1, 2, 130
"""Exit codes: an error; wrong usage; interrupted, to continue with the same command."""


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in words
    try:
        with plain_warnings():
            raise SystemExit(_run([word for word in words if word != "--debug"]))
    except KeyboardInterrupt:
        sentence, code = "stopped", STOPPED
    except Exception as error:
        sentence, code = explain(error, words)
        if debug or not sentence:
            print(printable(traceback.format_exc()), file=sys.stderr)
    if sentence:
        print(printable(f"atomsep: {sentence}"), file=sys.stderr)
    _drop_unwritable_output()
    raise SystemExit(code)


def _run(arguments: list[str]) -> int:
    from atomsep.cli.commands import app

    code: int | None = app(arguments or ["--help"], prog_name="atomsep", standalone_mode=False)
    if code == STOPPED:  # how typer returns a KeyboardInterrupt
        raise KeyboardInterrupt
    return code or 0


@contextmanager
def plain_warnings() -> Iterator[None]:
    """A block in which a warning about a layer is a sentence, without a line of source code."""
    with warnings.catch_warnings():
        others = warnings.showwarning

        def show(message: Any, category: type[Warning], *place: Any, **more: Any) -> None:
            if category.__name__ != "AtomWarning":  # its class would bring torch
                return others(message, category, *place, **more)
            text = str(message)
            sentence = as_settings(text) if "attach" in text else text
            return print(printable(f"atomsep: {sentence}"), file=sys.stderr)

        warnings.showwarning = show
        yield


def explain(error: Exception, words: Sequence[str] = ()) -> tuple[str, int]:
    """A sentence about an error, and its exit code; "" for an error that nobody foresaw.

    Args:
        error: what went wrong.
        words: the arguments of the command line.
    """
    if isinstance(error, ExperimentError):
        return str(error), FAILED
    if isinstance(error, ModuleNotFoundError) and error.name in ("rich", "typer"):
        return (  # the core is installed without them
            f"the command line needs {error.name}; install it with: "
            f"pip install 'atomsep[experiments]'"
        ), FAILED
    if hasattr(error, "format_message"):  # of click, or of typer's own copy of it
        context = getattr(error, "ctx", None)
        command = context.command_path if context else "atomsep"
        sentence = error.format_message()
        if type(error).__name__ == "NoSuchOption":
            from atomsep.cli.hints import hint_of_setting

            option = str(getattr(error, "option_name", ""))
            hint = hint_of_setting(option, words)
            sentence = f"No such option: {option}{hint}" if hint else sentence
        return f"{sentence}\nSee: {command} --help", MISUSED
    text = str(error) or type(error).__name__
    if isinstance(error, OSError):
        return f"{text}; --debug shows where", FAILED
    memory = ("out of memory", "allocate memory", "size calculation overflowed")
    if isinstance(error, MemoryError) or any(words in text for words in memory):
        line = text.splitlines()[0]
        advice = "try a smaller batch, fewer samples or a smaller model"
        if "CUDA" in text or "MPS" in text:
            advice += "; in a training, --data-on host leaves the model more of the GPU's memory"
        return f"memory ran out ({line}); {advice}", FAILED
    return "", FAILED


def _drop_unwritable_output() -> None:
    """Keep Python from complaining at exit about output that a full disk or closed pipe refused."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
