"""What a trained classifier said about samples, as pictures and one page of HTML."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from atomsep.experiments.errors import ExperimentError
from atomsep.experiments.files import replacing, write_text, writing
from atomsep.experiments.predicting import Prediction
from atomsep.importance.figure import image_figure
from atomsep.importance.images import triptychs
from atomsep.importance.words import merge_words, to_html, to_page

PAGE = "index.html"


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
                figure, picture = image_figure(*shown, titles=[heading]), triptychs(*shown)
            except ValueError as error:  # the tokens are not a grid
                raise ExperimentError(f"the charges of {name} are not a map: {error}") from error
            with writing(path), replacing(path) as part:
                figure.savefig(part, format="png")
            paths.append(path)
            data = base64.b64encode(_png(picture)).decode()
            style = "width:min(100%,45em);image-rendering:pixelated"
            text = html.escape(f"input, charges and overlay of {Path(name).name}", quote=True)
            image = f'<img style="{style}" alt="{text}" src="data:image/png;base64,{data}">'
            self.rows.append((heading, image))
        return paths

    def _free(self, *parts: str) -> str:
        """A name for a file that no sample before has."""
        wanted = "-".join(filter(None, parts))
        name, number = wanted, 1
        while name in self.taken:
            number += 1
            name = f"{wanted}-{number}"
        self.taken.add(name)
        return name

    def add_sentence(self, prediction: Prediction) -> None:
        """Add a sentence whose words have the colours of their charges, one row per layer."""
        text, tokens = prediction.seen.text, prediction.seen.tokens
        for layer, charges in by_layer(prediction).items():
            heading = " · ".join(filter(None, (verdict(prediction), layer)))
            self.rows.append((heading, to_html(text, merge_words(text, tokens, charges))))

    def write_page(self) -> Path:
        """Write the page of all samples; it is one file and needs no network."""
        path = self.folder / PAGE
        write_text(path, to_page(self.title, self.rows))
        return path


def _png(picture: Any) -> bytes:
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(picture).save(file, format="PNG")
    return file.getvalue()
