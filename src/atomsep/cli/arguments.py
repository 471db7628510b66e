"""Arguments that several commands share, and how they are read."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from atomsep.experiments.errors import ExperimentError, unknown

ExperimentName = Annotated[str, typer.Argument(help="Name of the experiment; see: atomsep list.")]
Assignments = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Change a setting; may be given again. The keys: atomsep list EXPERIMENT.",
    ),
]
Tiny = Annotated[bool, typer.Option("--tiny", help="The form on embedded data: seconds, no files.")]
Out = Annotated[Path, typer.Option(help="Folder of all runs.")]
Data = Annotated[Path, typer.Option(help="Folder of the data sets.")]
Download = Annotated[bool, typer.Option("--download", help="Fetch public data that is not there.")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or mps.")]
Devices = Annotated[int, typer.Option(min=1, help="How many devices, data-parallel.")]
Workers = Annotated[
    int | None,
    typer.Option(min=0, help="Processes that load data; by default 4, or 0 in the tiny form."),
]
CheckpointSeconds = Annotated[
    float, typer.Option(min=0, help="At most so much work is lost when the run is killed.")
]


def default_workers(tiny: bool) -> int:
    """Loading processes where nothing was said."""
    return 0 if tiny else min(4, os.cpu_count() or 1)


def chosen_methods(text: str, known: Sequence[str]) -> list[str]:
    """Names of methods from a list with commas, or all of them.

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
    """A number of seeds from 0 on, or the seeds themselves: with commas, or from-to.

    Example:
        >>> chosen_seeds("3"), chosen_seeds("3,"), chosen_seeds("5,7-9")
        ([0, 1, 2], [3], [5, 7, 8, 9])
    """
    try:
        if text.isdigit():
            seeds = list(range(int(text)))
        else:
            seeds = []
            for part in filter(str.strip, text.split(",")):
                first, _, last = part.partition("-")
                seeds += range(int(first), int(last or first) + 1)
    except ValueError:
        seeds = []
    if not seeds or min(seeds) < 0:
        raise ExperimentError(
            f"seeds must be how many there are, or the seeds themselves (5,7 or 5-9), not {text!r}"
        )
    return seeds
