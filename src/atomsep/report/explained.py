"""What a trained classifier said about samples, as pictures and one page of HTML."""

from __future__ import annotations

import io
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

from atomsep.experiments.errors import ExperimentError
from atomsep.experiments.files import replacing, write_text, writing
from atomsep.experiments.predicting import Prediction
from atomsep.importance.colours import INK, as_charges, css
from atomsep.importance.figure import BINS, image_figure
from atomsep.importance.images import triptychs
from atomsep.importance.words import merge_words, to_html, to_page
from atomsep.report.charges import sentence_figure
from atomsep.report.embedded import png_uri
from atomsep.report.html import Html, element, together
from atomsep.report.style import STYLE

PAGE = "index.html"
COLUMNS = ("input", "charges", "overlay")
WIDE = "width:min(100%,45em)"
"""Style of the pictures of an image."""


def verdict(prediction: Prediction) -> str:
    """The predicted class and its probability.

    Example:
        >>> verdict(Prediction(1, "cat", 0.875, [0.125, 0.875], None, None))
        'cat, 87.5 %'
    """
    return f"{prediction.name}, {100 * prediction.probability:.1f} %"


def by_layer(prediction: Prediction) -> Mapping[str, Any]:
    """The importance of a sample by the layer's name, which is empty where there is only one."""
    importance = prediction.importance
    return importance if isinstance(importance, dict) else {"": importance}


class Explained:
    """A folder with the maps of samples, which are added one by one.

    Args:
        folder: where to write; it is made if it does not exist.
        title: heading of the page.
    """

    def __init__(self, folder: Path, title: str) -> None:
        self.folder, self.title = folder, title
        self.rows: list[tuple[str, str]] = []
        self.taken: set[str] = set()
        self.sentences = 0
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)

    def add_image(self, name: str, prediction: Prediction) -> list[Path]:
        """Write the maps of an image as PNG files, one per layer; returns them.

        Args:
            name: its file, or another name.
            prediction: what the model said, with its importance.

        Raises:
            ExperimentError: the tokens of a layer are not a grid.
        """
        paths = []
        for layer, charges in by_layer(prediction).items():
            heading = " · ".join(filter(None, (Path(name).name, verdict(prediction), layer)))
            shown = prediction.seen[None], charges[None]
            path = self.folder / f"{self._free(Path(name).stem, layer)}.png"
            try:
                figure = image_figure(*shown, titles=[heading])
                picture = triptychs(*shown, space=0)
            except ValueError as error:  # the tokens are not a grid
                raise ExperimentError(f"the charges of {name} are not a map: {error}") from error
            paths.append(self._save(figure, path))
            text = f"input, charges and overlay of {Path(name).name}"
            look = f"{WIDE};image-rendering:pixelated"
            image = element("img", style=look, alt=text, src=png_uri(_png(picture)))
            self.rows.append((heading, together(_names(), image, histogram(charges, "token"))))
        return paths

    def _save(self, figure: Figure, path: Path) -> Path:
        with warnings.catch_warnings(), writing(path), replacing(path) as part:
            # Letters that the font lacks are boxes; the page shows them.
            warnings.filterwarnings("ignore", "Glyph .* missing", UserWarning)
            figure.savefig(part, format="png")
        return path

    def _free(self, *parts: str) -> str:
        """A name for a file that no sample before has."""
        wanted = "-".join(filter(None, parts))
        name, number = wanted, 1
        while name in self.taken:
            number += 1
            name = f"{wanted}-{number}"
        self.taken.add(name)
        return name

    def add_sentence(self, prediction: Prediction) -> list[Path]:
        """Add a sentence whose words have the colours of their charges, one row per layer.

        Returns:
            The PNG files, one per layer: sentence-1.png and so on.
        """
        text, tokens = prediction.seen.text, prediction.seen.tokens
        self.sentences += 1
        paths = []
        for layer, charges in by_layer(prediction).items():
            words = merge_words(text, tokens, charges)
            path = self.folder / f"{self._free(f'sentence-{self.sentences}', layer)}.png"
            with mpl.rc_context(STYLE):
                paths.append(self._save(sentence_figure([words]), path))
            heading = " · ".join(filter(None, (verdict(prediction), layer)))
            shown = histogram([word.charge for word in words if not word.special], "word")
            self.rows.append((heading, to_html(text, words) + shown))
        return paths

    def write_page(self) -> Path:
        """Write the page of all samples; it is one file and needs no network."""
        path = self.folder / PAGE
        write_text(path, to_page(self.title, self.rows))
        return path


def _names() -> Html:
    """The names of the three pictures of an image, above them."""
    look = f"display:grid;grid-template-columns:repeat(3,1fr);column-gap:2%;{WIDE}"
    names = (element("span", name, style="font-size:80%") for name in COLUMNS)
    return element("div", *names, style=look)


def histogram(charges: Any, of: str) -> Html:
    """The shares of charges as SVG, over a bar of their colours with the names of the particles.

    Args:
        charges: of any shape.
        of: what has the charges.
    """
    import numpy as np

    values = as_charges(charges).ravel()
    counts, edges = np.histogram(values[~np.isnan(values)], BINS, (-1, 1))
    most = int(counts.max())
    width, left, bottom, height = 400 / BINS, 20, 66, 46
    parts = []
    for number, count in enumerate(counts.tolist()):
        place = {"x": left + width * number, "width": width}
        high = height * count / max(1, most)
        parts.append(element("rect", **place, y=bottom - high, height=high, fill=INK))
        colour = css(float(edges[number : number + 2].mean()))
        parts.append(element("rect", **place, y=bottom + 2, height=10, fill=colour))
    share = 100 * most / max(1, int(counts.sum()))
    for x, y, anchor, text in (
        (left, 14, "start", f"highest bar: {share:.3g} % of the {of}s"),
        (left, 92, "start", "−1 electron"),
        (left + 200, 92, "middle", "0 neutron"),
        (left + 400, 92, "end", "+1 proton"),
        (left + 200, 108, "middle", f"charge q of a {of}"),
    ):
        parts.append(element("text", text, x=x, y=y, text_anchor=anchor, fill=INK))
    look = "display:block;width:min(100%,30rem);font:11px system-ui,sans-serif"
    label = f"histogram of the charges of all {of}s"
    where = {"viewBox": "0 0 440 114", "role": "img", "aria_label": label, "style": look}
    return element("svg", *parts, **where)


def _png(picture: Any) -> bytes:
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(picture).save(file, format="PNG")
    return file.getvalue()
