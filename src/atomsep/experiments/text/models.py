"""Encoders of Hugging Face."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from atomsep.experiments.errors import ExperimentError
from atomsep.experiments.text.experiments import TINY
from atomsep.experiments.text.tiny import tiny_encoder


def load_encoder(
    name: str, classes: int, texts: Sequence[str], *, download: bool = False
) -> tuple[Any, Any]:
    """A tokenizer, and an encoder with an untrained classifier.

    Args:
        name: name of a model on the Hugging Face hub, or a folder; "tiny" for a small untrained
            one.
        classes: number of classes.
        texts: training texts, the vocabulary of the small one.
        download: fetch the model if it is not on this machine.

    Raises:
        ExperimentError: there is no such model, or it cannot be used.
    """
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    if name == TINY and not Path(name).exists():
        return tiny_encoder(texts, classes)
    local = not download or Path(name).exists()
    try:
        with quiet():
            tokenizer = AutoTokenizer.from_pretrained(name, local_files_only=local)
            model = AutoModelForSequenceClassification.from_pretrained(
                name, num_labels=classes, local_files_only=local, ignore_mismatched_sizes=True
            )
    except (OSError, ValueError) as error:
        reason = str(error).strip().split("\n")[0]
        if Path(name).is_dir():
            raise ExperimentError(
                f"the folder {name} does not hold a model with its tokenizer, as written by "
                f"save_pretrained ({reason})"
            ) from error
        advice = "check the name" if download else "fetch it with --download"
        raise ExperimentError(
            f"the model {name!r} cannot be loaded ({reason}); {advice}, or name a folder that "
            f"holds a model with its tokenizer: --set model=FOLDER"
        ) from error
    if tokenizer.pad_token is None:
        raise ExperimentError(
            f"the tokenizer of {name!r} has no padding token, so sentences cannot share a batch; "
            f"use an encoder such as bert-base-cased"
        )
    return tokenizer, model


@contextmanager
def quiet() -> Iterator[None]:
    """Silence what transformers prints while it loads."""
    from transformers.utils import logging

    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()
