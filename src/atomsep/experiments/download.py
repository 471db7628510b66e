"""Download a public file, whole or not at all."""

from __future__ import annotations

import shutil
import urllib.error
import urllib.request
from pathlib import Path

from atomsep.experiments.errors import ExperimentError
from atomsep.experiments.files import replacing

TIMEOUT = 60
"""Seconds without a byte after which the download is given up."""


def fetch(url: str, path: Path) -> None:
    """Download a file, unless it is already there.

    Raises:
        ExperimentError: the server does not answer, or the file cannot be written.
    """
    if path.exists():
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with urllib.request.urlopen(url, timeout=TIMEOUT) as answer, replacing(path) as part:
            with open(part, "wb") as file:
                shutil.copyfileobj(answer, file)
            length = answer.headers.get("Content-Length")
            # A broken connection ends the stream without an error.
            if length is not None and part.stat().st_size != int(length):
                raise OSError(f"only {part.stat().st_size} of {length} bytes arrived")
    except OSError as error:
        if isinstance(error, urllib.error.HTTPError):
            error.close()  # it holds the connection
        raise ExperimentError(
            f"{url} cannot be downloaded to {path} ({error}); try again, or put the file there "
            f"yourself"
        ) from error
