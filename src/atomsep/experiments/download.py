"""Fetch a public file whole or not at all."""

from __future__ import annotations

import shutil
import urllib.error
import urllib.request
from pathlib import Path

from atomsep.experiments.errors import ExperimentError
from atomsep.experiments.runs import replacing

TIMEOUT = 60
"""Seconds without a byte after which a server counts as gone."""


def fetch(url: str, path: Path) -> None:
    """Download a file to its place, unless it is there.

    Raises:
        ExperimentError: the server does not answer, or the disk refuses.
    """
    if path.exists():
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with urllib.request.urlopen(url, timeout=TIMEOUT) as answer, replacing(path) as part:
            with open(part, "wb") as file:
                shutil.copyfileobj(answer, file)
            length = answer.headers.get("Content-Length")
            # a connection that breaks ends the stream without an error
            if length is not None and part.stat().st_size != int(length):
                raise OSError(f"{part.stat().st_size} of {length} bytes came")
    except OSError as error:
        if isinstance(error, urllib.error.HTTPError):
            error.close()  # it holds the connection
        raise ExperimentError(
            f"{url} cannot be fetched to {path} ({error}); try again, or put the file there by hand"
        ) from error
