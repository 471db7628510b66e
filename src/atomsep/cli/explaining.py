"""`atomsep explain`: what a trained classifier says about images or sentences, and why."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from atomsep.cli import arguments, display
from atomsep.experiments.errors import ExperimentError
from atomsep.experiments.runs import Run

if TYPE_CHECKING:
    from atomsep.experiments.predicting import Prediction
    from atomsep.report.explained import Explained

TABLES = (".txt", ".csv", ".tsv")
"""Endings of names that are not taken for sentences."""


def explain(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a finished run.")],
    inputs: Annotated[
        list[str],
        typer.Argument(
            metavar="INPUT",
            help="Images: files or folders. Sentences: in quotes, or text files with one per line.",
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for the maps; by default explained/ in the run's folder."),
    ] = None,
    device: arguments.Device = "cpu",
) -> None:
    """Show what a trained classifier says about images or sentences, with the charge of each token.

    The predictions are printed. The maps are written as one page of HTML and as PNG files. It needs
    the run's folder, not its data.

    Examples:
    - `atomsep explain runs/flowers/atom-1a2b3c4d/seed-0 rose.jpg more/roses`

    - `atomsep explain runs/cola/atom-1a2b3c4d/seed-0 "The cat sat on the mat."`
    """
    if Run(run).read_result() is None:
        raise ExperimentError(
            f"{run} holds no finished run: it has no result.json. Name the folder of a single run, "
            f"such as runs/flowers/atom-1a2b3c4d/seed-0"
        )
    from atomsep.experiments.trained import TrainedClassifier, load_run
    from atomsep.report.explained import Explained

    trained = load_run(run, device=device)
    kind = trained.inputs.kind if isinstance(trained, TrainedClassifier) else ""
    if kind not in ("images", "sentences"):
        call = f'atomsep.load_run("{run}").{"predict" if kind else "sample"}'
        raise ExperimentError(
            f"explain takes images or sentences, and {trained.experiment} reads neither; in "
            f"Python, call {call}"
        )
    given = image_files(inputs) if kind == "images" else sentences(inputs)
    console = display.make_console()
    title = f"{trained.experiment}, {trained.method}, seed {trained.seed}"
    explained = None
    if trained.attachment is None:
        console.say(f"The method {trained.method!r} does not measure importance: there are no maps")
    else:
        explained = Explained(out or run / "explained", title)
    with display.CountDisplay(console, "explaining", len(given)) as shown:
        for start in range(0, len(given), trained.settings.batch):  # not all in memory at once
            part = given[start : start + trained.settings.batch]
            for name, prediction in zip(part, trained.predict(part), strict=True):
                show(console, name, prediction, kind, explained)
                shown.advance_one()
    if explained is not None:
        console.say(f"The maps are in {explained.write_page()}")


def show(
    console: display.SafeConsole,
    name: str,
    prediction: Prediction,
    kind: str,
    explained: Explained | None,
) -> None:
    """Print a prediction, and write its maps."""
    from atomsep.importance.words import merge_words, to_terminal
    from atomsep.report.explained import by_layer, verdict

    console.say(f"{verdict(prediction)}: {name}")
    if explained is None or prediction.importance is None:
        return
    if kind == "images":
        explained.add_image(name, prediction)
        return
    explained.add_sentence(prediction)
    for charges in by_layer(prediction).values():
        words = merge_words(prediction.seen.text, prediction.seen.tokens, charges)
        numbers = not display.shows_charges(console)
        console.print(to_terminal(prediction.seen.text, words, numbers=numbers), soft_wrap=True)


def image_files(inputs: Sequence[str]) -> list[str]:
    """The image files among some names of files and folders.

    Raises:
        ExperimentError: there is no such file, or no image in a folder.
    """
    return [path for each in inputs for path in _images(Path(each))]


def _images(path: Path) -> Iterator[str]:
    from atomsep.experiments.gan.pictures import SUFFIXES

    if path.is_dir():
        found = sorted(str(file) for file in path.rglob("*") if file.suffix.lower() in SUFFIXES)
        if not found:
            raise ExperimentError(f"there is no image in the folder {path}")
        yield from found
    elif path.is_file():
        yield str(path)
    else:
        raise ExperimentError(
            f"there is no file {str(path)!r}; this run takes images, by the names of their files "
            f"or folders"
        )


def sentences(inputs: Sequence[str]) -> list[str]:
    """Sentences, and those that text files hold, one per line.

    Raises:
        ExperimentError: a file does not exist, cannot be read or is empty; a sentence is empty.
    """
    return [text for each in inputs for text in _sentences(each)]


def _sentences(given: str) -> list[str]:
    if not os.path.isfile(given):  # not of Path, which refuses what is too long for a name
        if os.path.isdir(given) or (" " not in given and given.lower().endswith(TABLES)):
            raise ExperimentError(
                f"there is no file {given!r}; this run takes sentences, in quotes or in a text "
                f"file with one per line"
            )
        if not given.strip():
            raise ExperimentError("a sentence is empty; write it in quotes")
        return [given]
    try:
        lines = Path(given).read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ExperimentError(f"{given} cannot be read as text ({error})") from error
    found = [line.strip() for line in lines if line.strip()]
    if not found:
        raise ExperimentError(f"{given} holds no sentence")
    return found
