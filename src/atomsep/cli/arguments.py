"""Arguments of the commands, and how they are read."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from atomsep.experiments.errors import ExperimentError, unknown

MOST = 1024
"""Processes that an option may ask for."""

ExperimentName = Annotated[str, typer.Argument(help="Name of the experiment; see: atomsep list.")]
Assignments = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Change a setting; may be repeated. Keys: atomsep list EXPERIMENT.",
    ),
]
Tiny = Annotated[
    bool,
    typer.Option(
        "--tiny", help="Train a tiny version on built-in data; takes seconds and needs no files."
    ),
]
Out = Annotated[Path, typer.Option(help="Folder for all runs.")]
Data = Annotated[Path, typer.Option(help="Folder with the data sets.")]
Download = Annotated[bool, typer.Option("--download", help="Download missing public data.")]
Device = Annotated[
    str, typer.Option(help="Where to compute: auto, cpu, cuda or mps (Apple's GPU).")
]
Devices = Annotated[
    int, typer.Option(min=1, max=MOST, help="Number of devices, for data-parallel training.")
]


def read_jobs(value: str | int) -> int | None:
    """Number of runs at a time; None for "auto".

    Raises:
        typer.BadParameter: it is neither.

    Example:
        >>> read_jobs("4"), read_jobs("auto")
        (4, None)
    """
    text = str(value)  # the default is a number
    if text == "auto":
        return None
    if not (text.isdecimal() and 1 <= int(text) <= MOST):
        raise typer.BadParameter(f"{text!r} is neither auto nor a number from 1 to {MOST}")
    return int(text)


Jobs = Annotated[
    int | None,
    typer.Option(
        "--jobs",
        "-j",
        parser=read_jobs,
        metavar="NUMBER|auto",
        help="Number of runs at a time; auto: as many as cores and memory allow.",
    ),
]
Search = Annotated[
    bool,
    typer.Option(
        "--search",
        help="First choose the learning rate and weight decay with the plain method, then each "
        "method's weight, on held-out training samples. Settings given with --set stay fixed.",
    ),
]
SearchSeeds = Annotated[
    str, typer.Option(help="Seeds for the search; none of them may be in --seeds.")
]
Mps = Annotated[
    bool,
    typer.Option(
        "--mps",
        help="Start NVIDIA MPS for this sweep, so that its runs use the GPU at the same time "
        "instead of taking turns. An existing daemon is used and never stopped.",
    ),
]
Executor = Annotated[
    str,
    typer.Option(
        help="Where to train: local, or ray for a Ray cluster whose machines share the folders."
    ),
]
Workers = Annotated[
    int | None,
    typer.Option(
        min=0, max=MOST, help="Number of processes that load data; by default 4, or 0 with --tiny."
    ),
]
DataOn = Annotated[
    str,
    typer.Option(
        help="Where the data is kept: device; host, to send it batch by batch; loader, to decode "
        "images in every epoch (GANs and text: as auto); auto, depending on available memory."
    ),
]
CheckpointSeconds = Annotated[
    float,
    typer.Option(min=0, help="Seconds between checkpoints (the most work that a crash can lose)."),
]

MOST_SEEDS = 10_000
"""Seeds that a command takes at most."""


def chosen_workers(workers: int | None, tiny: bool) -> int:
    """Number of loading processes, which is None where it is not given."""
    return workers if workers is not None else 0 if tiny else min(4, os.cpu_count() or 1)


def chosen_methods(text: str, known: Sequence[str]) -> list[str]:
    """Names of methods from a list with commas, or all of them.

    Raises:
        ExperimentError: a method is unknown.

    Example:
        >>> chosen_methods("plain,atom", ("plain", "vq", "atom"))
        ['plain', 'atom']
    """
    if text == "all":
        return list(known)
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in known:
            raise unknown("method", name, known)
    return names


def chosen_seeds(text: str) -> list[int]:
    """Seeds from their number (starting at 0), or from a list with commas and ranges.

    Raises:
        ExperimentError: the text is neither, or there are too many.

    Example:
        >>> chosen_seeds("3"), chosen_seeds("3,"), chosen_seeds("5,7-9")
        ([0, 1, 2], [3], [5, 7, 8, 9])
    """
    try:
        if text.isdigit():
            ranges = [range(int(text))]
        else:
            parts = [part.partition("-") for part in text.split(",") if part.strip()]
            ranges = [range(int(first), int(last or first) + 1) for first, _, last in parts]
    except ValueError:
        ranges = []
    if not any(ranges) or min(each.start for each in ranges) < 0:
        raise ExperimentError(
            f"seeds must be a number of seeds, or the seeds themselves (5,7 or 5-9), not {text!r}"
        )
    # Not len(), which fails for the longest ranges.
    if sum(max(0, each.stop - each.start) for each in ranges) > MOST_SEEDS:
        raise ExperimentError(f"{text!r} is more than {MOST_SEEDS} seeds; choose fewer")
    return [seed for each in ranges for seed in each]


def chosen_search_seeds(text: str) -> list[int]:
    """Seeds of a search, from a list with commas and ranges.

    Raises:
        ExperimentError: as for `chosen_seeds`, or the text is a bare number, which could mean both.

    Example:
        >>> chosen_search_seeds("5,"), chosen_search_seeds("100-102")
        ([5], [100, 101, 102])
    """
    number = text.strip()
    if number.isdigit():
        raise ExperimentError(
            f"--search-seeds {number} could be a seed or a number of seeds; write {number}, for "
            f"seed {number}, or 100-104 for several"
        )
    return chosen_seeds(text)
