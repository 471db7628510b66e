"""Faces of UTKFace at 64 px as JPEG files: `python -m study.faces SOURCE DATA`.

SOURCE holds the aligned and cropped faces of UTKFace, with their names of age, gender, race and
date. Draws 12,000 of them, the same in every call, and writes `DATA/utkface-64/faces`. The study's
own copy is another draw of 12,000, so numbers differ from its tables by about as much as seeds do.
"""

from __future__ import annotations

import argparse
import random
from pathlib import Path

from PIL import Image

FACES, SIDE = 12_000, 64


def write(source: Path, data: Path) -> Path:
    """Write the files; returns their folder."""
    files = sorted(source.rglob("*.jpg"))
    if not files:
        raise SystemExit(f"{source} holds no .jpg files; name the folder of UTKFace's faces")
    folder = data / "utkface-64" / "faces"
    folder.mkdir(parents=True, exist_ok=True)
    for file in random.Random(0).sample(files, min(FACES, len(files))):
        with Image.open(file) as image:
            small = image.convert("RGB").resize((SIDE, SIDE), Image.Resampling.LANCZOS)
        small.save(folder / f"{file.name.split('.')[0]}.jpg", quality=95)
    return folder


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("source", type=Path, help="folder of UTKFace's aligned faces")
    parser.add_argument("data", type=Path, help="folder of all data")
    given = parser.parse_args()
    print(write(given.source, given.data))
