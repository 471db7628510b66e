"""Numbers and importance maps for TensorBoard."""

from __future__ import annotations

import importlib.util
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from atomsep.experiments.atoms_file import Atoms
from atomsep.experiments.files import CONTINUES, writing
from atomsep.importance.colours import diverging
from atomsep.importance.images import triptychs
from atomsep.importance.words import merge_words

SHOWN = 8
"""Samples whose importance is shown."""

SQUARE = 8
"""Pixels per token, where tokens have no place in an image."""


class Board:
    """Shows the course of a run; this base class, which TensorBoard's absence leaves, nothing."""

    shows = False

    def add(self, name: str, value: float, step: int) -> None:
        """Add a number after so many steps."""

    def add_atoms(self, atoms: Atoms, step: int) -> None:
        """Add samples with their charges after so many steps."""


def has_tensorboard() -> bool:
    """Whether TensorBoard is installed."""
    return importlib.util.find_spec("tensorboard") is not None


@contextmanager
def tensorboard(folder: Path, first_step: int) -> Iterator[Board]:
    """A board in a folder; what an earlier run wrote from `first_step` on is dropped.

    Raises:
        ExperimentError: the file system refuses.
    """
    from torch.utils.tensorboard import SummaryWriter

    with _quiet_writer_thread():
        with writing(folder, then=CONTINUES):
            writer = SummaryWriter(str(folder), purge_step=first_step)

        try:
            yield _TensorBoard(writer, folder)
        finally:
            with writing(folder, then=CONTINUES):
                writer.close()


class _TensorBoard(Board):
    shows = True

    def __init__(self, writer: Any, folder: Path) -> None:
        self.writer, self.folder = writer, folder

    def add(self, name: str, value: float, step: int) -> None:
        with writing(self.folder, then=CONTINUES):
            self.writer.add_scalar(name, value, step)

    def add_atoms(self, atoms: Atoms, step: int) -> None:
        with writing(self.folder, then=CONTINUES):
            self.writer.add_histogram("charges", atoms.charges, step)
            if atoms.tokens is not None:
                self.writer.add_text("importance", words_with_charges(atoms), step)
            elif atoms.images is not None:
                try:
                    picture = triptychs(atoms.images, atoms.charges)
                except ValueError:  # the tokens are not a grid: one row of squares per sample
                    picture = diverging(atoms.charges).repeat(SQUARE, 0).repeat(SQUARE, 1)
                self.writer.add_image("importance", picture, step, dataformats="HWC")


def words_with_charges(atoms: Atoms) -> str:
    """Sentences with the charge of every word behind it, as Markdown that shows them literally."""
    lines = []
    for text, tokens, charges in zip(
        atoms.sentences or (), atoms.tokens or (), atoms.charges, strict=True
    ):
        words = merge_words(text, tokens, charges[: len(tokens)])
        lines.append("    " + "  ".join(f"{word.text} {word.charge:+.2f}" for word in words))
    return "\n".join(lines)


@contextmanager
def _quiet_writer_thread() -> Iterator[None]:
    """Print no traceback of TensorBoard's thread: the writer raises its error again."""
    shown = threading.excepthook

    def hook(error: threading.ExceptHookArgs) -> None:
        if not type(error.thread).__module__.startswith("tensorboard"):
            shown(error)

    threading.excepthook = hook
    try:
        yield
    finally:
        threading.excepthook = shown
