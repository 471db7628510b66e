"""The first 10,000 training images of CIFAR-10 as PNG files: `python -m study.cifar DATA`.

Reads `DATA/cifar10`, as torchvision stores it, and writes `DATA/cifar10-png`.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from PIL import Image
from torchvision.datasets import CIFAR10

IMAGES = 10_000


def write(data: Path) -> Path:
    """Write the files; returns their folder."""
    folder = data / "cifar10-png"
    folder.mkdir(exist_ok=True)
    for number, pixels in enumerate(CIFAR10(data / "cifar10").data[:IMAGES]):
        Image.fromarray(pixels).save(folder / f"{number:05}.png")
    return folder


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("data", type=Path, help="folder of all data")
    print(write(parser.parse_args().data))
