"""Pictures that become part of the page: figures of the paper, and what the runs drew."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator
from typing import Any

from atomsep.experiments.runs import Run
from atomsep.report.html import Html, element
from atomsep.report.parts import Finished, Part

DOTS_PER_INCH = 160
WIDEST = 640
"""Pixels of a picture that stands in one of two columns."""

PNG = b"\x89PNG\r\n\x1a\n"
MOST_BYTES = 4_000_000
"""Size of a picture of a run beyond which it is left out."""


def figures(part: Part) -> Iterator[Html]:
    """What the page does not draw itself: latent space, charges by value, atomic distances."""
    import matplotlib as mpl

    from atomsep.report.figures import draw_distances, draw_mixtures
    from atomsep.report.style import STYLE

    with mpl.rc_context(STYLE):
        drawings = [*draw_distances("", part)]
        runs = [run for each in part.runs for run in each]
        if part.main.experiment == "synthetic" and all(Run(r.folder).model.exists() for r in runs):
            drawings = [*draw_mixtures("", part, "pca"), *drawings]
        for drawing in drawings:
            file = io.BytesIO()
            drawing.figure.savefig(file, format="png", dpi=DOTS_PER_INCH)
            alt = "Figure: " + drawing.caption.partition(". ")[0]
            yield framed(file.getvalue(), drawing.caption, alt)


def pictures(part: Part) -> Iterator[Html]:
    """The pictures that the first run of each row wrote, such as samples of a GAN."""
    for row, runs in zip(part.main.rows, part.runs, strict=True):
        files = runs[0].result.get("files")
        for name in files if isinstance(files, list) else []:
            png = _read_picture(runs[0], name)
            if png is not None:
                caption = f"{part.title}, {row.title}, seed {runs[0].result['seed']}: {name}"
                yield framed(png, caption, f"Picture that the run wrote: {name}")


def _read_picture(run: Finished, name: Any) -> bytes | None:
    """A PNG file of a run; None if it is not a file of its folder, or too large."""
    if not isinstance(name, str) or name not in {path.name for path in run.folder.iterdir()}:
        return None
    path = run.folder / name
    if not path.is_file() or path.stat().st_size > MOST_BYTES:
        return None
    png = path.read_bytes()
    return png if png.startswith(PNG) else None


def framed(png: bytes, caption: str, alt: str) -> Html:
    """A picture with its caption below; one that is wider than a column has the page's width.

    Its size is written down, so that the page does not move while pictures are decoded.
    """
    width, height = (int.from_bytes(png[start : start + 4]) for start in (16, 20))  # of the header
    image = element("img", src=png_uri(png), alt=alt, width=width, height=height)
    below = element("figcaption", caption)
    if width <= WIDEST:
        return element("figure", image, below)
    # On a narrow screen it is scrolled: its text would be too small to read.
    frame = element("div", image, class_="wide", tabindex=0)
    return element("figure", frame, below, class_="whole")


def png_uri(png: bytes) -> str:
    """The contents of a PNG file as an address."""
    return "data:image/png;base64," + base64.b64encode(png).decode()
