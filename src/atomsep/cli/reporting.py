"""Commands that show finished runs: `atomsep table`, `figures` and `report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from atomsep.cli import display, tables
from atomsep.experiments.errors import ExperimentError, unknown
from atomsep.experiments.runs import find_results

Runs = Annotated[Path, typer.Argument(help="Folder of runs, or any folder within it.")]


def results_under(root: Path) -> list[dict[str, Any]]:
    """The results of all finished runs under a folder.

    Raises:
        ExperimentError: there is none.
    """
    results = find_results(root)
    if not results:
        raise ExperimentError(f"there is no finished run under {root}")
    return results


def table(
    runs: Runs,
    format: Annotated[
        str | None,
        typer.Option(
            "--format",
            "-f",
            help="markdown, latex or csv; by default drawn on a terminal, and Markdown in a pipe.",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Write each table to files in this folder, in all three formats."),
    ] = None,
) -> None:
    """Put finished runs into tables, beside the paper's figures.

    The tables show mean and deviation over seeds; against the plain method the paired difference,
    its 95 % interval, and the t and Wilcoxon tests with Holm's correction. They are printed,
    or with `--out` written to files.

    Examples:
    - `atomsep table runs`

    - `atomsep table runs/flowers --format latex > flowers.tex`
    """
    if format is not None and format not in tables.FORMATS:
        raise unknown("format", format, tables.FORMATS)
    results = results_under(runs)
    if out is None:
        tables.print_tables(results, format)
    else:
        tables.write_tables(results, out)


def figures(
    runs: Runs,
    out: Annotated[Path, typer.Option(help="Folder to write the figures to.")] = Path("figures"),
    projection: Annotated[
        str, typer.Option(help="How the latent space is drawn in two dimensions: pca or tsne.")
    ] = "pca",
) -> None:
    """Draw the paper's figures from finished runs, as PNG and PDF.

    Which figures there are depends on the runs: metrics by method, ablations, atomic distances, and
    images or sentences with their charges; for the Gaussian mixtures also the latent space and
    charges by value. `captions.md` shows them all, with data, seeds and what to see.

    Examples:
    - `atomsep figures runs`

    - `atomsep figures runs/synthetic --out paper --projection tsne`
    """
    from atomsep.report.figures import write_figures

    files = write_figures(runs, out, projection)
    count = display.counted(sum(path.suffix == ".png" for path in files), "figure")
    display.make_console().say(
        f"{count} as PNG and PDF; {files[-1]} shows them with their captions"
    )


def report(
    runs: Runs,
    out: Annotated[Path, typer.Option(help="The HTML file to write.")] = Path("report.html"),
) -> None:
    """Put finished runs on one page of HTML.

    The page says in words what the seeds show, and has tables, training curves, settings, and an
    explorer of samples with the charge of every token. It is one file that needs no network: open
    it in a browser, or send it to a colleague. It is written to report.html in the current folder,
    or to the file given with `--out`; a file that is there is replaced.

    Examples:
    - `atomsep report runs`

    - `atomsep report runs/flowers --out flowers.html`
    """
    results_under(runs)
    from atomsep.report.page import write_report

    write_report(runs, out)
    display.make_console().say(f"The report is in {out.resolve()}")
