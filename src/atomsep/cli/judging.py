"""`atomsep faithful`: whether predictions depend on what the maps mark, and what the truth says."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from atomsep.cli import arguments, display, tables
from atomsep.experiments.errors import ExperimentError
from atomsep.experiments.runs import Run


def faithful(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN", help="Folders of finished runs, or folders that contain some."
        ),
    ],
    images: Annotated[
        int, typer.Option(min=2, help="Held-out images per run, spread over all of them.")
    ] = 500,
    out: Annotated[Path, typer.Option(help="Folder for the results.")] = Path("faithful"),
    data: arguments.Data = Path("data"),
    device: arguments.Device = "cpu",
) -> None:
    """Measure how faithful the charges of image classifiers are, compared with other maps.

    Deletion removes the tokens with the highest scores first, and insertion brings them back: the
    area under the predicted class's probability is small, or large, for a faithful map. Where the
    data has segmentations (Pets), AUC and IoU tell how well a map finds the animal. Charges are
    compared with random order, the centre of the image, an untrained model and, if Captum is
    installed, gradient x input, integrated gradients and Grad-CAM.

    It writes CSV files, tables and one figure.

    Examples:
    - `atomsep faithful runs/pets --images 1000 --device cuda`
    """
    folders = find_folders(runs)
    from atomsep.experiments.faithfulness import judge
    from atomsep.experiments.trained import load_run
    from atomsep.importance.rivals import has_captum
    from atomsep.report.faithful import Point, Row, rows_of
    from atomsep.report.faithful_page import write_results

    console = display.make_console()
    if not has_captum():
        console.say(
            "Captum is not installed: gradient x input, integrated gradients and Grad-CAM are left "
            "out (pip install 'atomsep[faithful]')"
        )
    rows: list[Row] = []
    points: list[Point] = []
    with display.CountDisplay(console, "measuring", 100 * len(folders)) as shown:
        for number, folder in enumerate(folders):

            def advance(done: int, total: int, before: int = number) -> None:
                shown.update(shown.bar, completed=100 * (before + done / total))

            found = rows_of(
                run := load_run(folder, device=device), judge(run, data, images, advance)
            )
            rows, points = rows + found[0], points + found[1]
    for title, (columns, *lines) in write_results(out, rows, points):
        tables.show(console, title, columns, lines)
    console.say(f"Tables, figure and CSV files are in {out}")


def find_folders(given: list[Path]) -> list[Path]:
    """The finished runs in some folders, each once.

    Raises:
        ExperimentError: a folder holds none.
    """
    found: dict[Path, None] = {}
    for folder in given:
        own = sorted(path.parent for path in folder.rglob("result.json") if _is_reported(path))
        if not own:
            raise ExperimentError(
                f"there is no finished run under {folder}; name a folder such as runs/pets"
            )
        found |= dict.fromkeys(own)
    return list(found)


def _is_reported(result: Path) -> bool:
    """Whether a result is of the test samples, not of those that a search holds out."""
    found = Run(result.parent).read_result()
    return found is not None and not found.get("validation", False)
