"""Scalars for TensorBoard."""

from __future__ import annotations

import importlib.util
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from atomsep.experiments.files import writing

AddScalar = Callable[[str, float, int], None]
"""Takes a name, a value and the number of steps done."""


def has_tensorboard() -> bool:
    """Whether TensorBoard is installed."""
    return importlib.util.find_spec("tensorboard") is not None


@contextmanager
def tensorboard(folder: Path, first_step: int) -> Iterator[AddScalar]:
    """A function that adds a scalar; what an earlier run wrote from `first_step` on is dropped.

    Raises:
        ExperimentError: the file system refuses.
    """
    from torch.utils.tensorboard import SummaryWriter

    with _quiet_writer_thread():
        with writing(folder):
            writer = SummaryWriter(str(folder), purge_step=first_step)

        def add(name: str, value: float, step: int) -> None:
            with writing(folder):
                writer.add_scalar(name, value, step)

        try:
            yield add
        finally:
            with writing(folder):
                writer.close()


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
