"""The image models: every classifier of torchvision, the smallest model of every timm family."""

from __future__ import annotations

import csv
import warnings
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks.zoo.truth import Batch, Subject

SMALLEST = Path(__file__).parent.parent / "results" / "zoo_timm.csv"

SIZES = ((64, (96, 128)), (64, 128), (96, 192), (128, 256), (160, 320), (224, 448))
"""Sizes of the images, usual and other, in the order in which they are tried."""

LARGE = 3e6
"""Parameters from which a model is compared in float32."""


def torchvision_names() -> list[str]:
    """Every classification builder."""
    from torchvision import models

    return models.list_models(module=models)


def timm_names() -> dict[str, str]:
    """The smallest model of each of timm's modules, by the number of parameters.

    Counting takes minutes, so it is kept in a file with timm's version.
    """
    import timm

    if SMALLEST.exists():
        rows = list(csv.DictReader(SMALLEST.open(newline="")))
        if rows[0]["timm"] == timm.__version__:
            return {row["family"]: row["model"] for row in rows}
    rows = []
    for family in timm.list_modules():
        counts = {name: _count(name) for name in timm.list_models(module=family)}
        if counts:
            name = min(counts, key=lambda each: (counts[each], each))
            found = {"family": family, "model": name, "parameters": str(counts[name])}
            rows.append({"timm": timm.__version__, **found})
            print(f"smallest of {family}: {name}", flush=True)
    with SMALLEST.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return {row["family"]: row["model"] for row in rows}


def _count(name: str) -> int:
    import timm

    with torch.device("meta"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return sum(p.numel() for p in timm.create_model(name).parameters())


def torchvision_subjects(name: str) -> Iterator[Subject]:
    from torchvision import models

    def make(size: Any) -> nn.Module:
        options: dict[str, Any] = {"num_classes": 7}
        if name.startswith("vit"):
            options["image_size"] = size
        elif name.startswith("maxvit"):
            options["input_size"] = (size, size) if isinstance(size, int) else size
        if name.startswith(("inception", "googlenet")):
            options["init_weights"] = False
        return models.get_model(name, weights=None, **options)

    if name == "inception_v3":  # its second classifier needs the full size
        return _subjects(make, ((299, 331),))
    small: Any = ((32, (64, 96)), (32, 64))  # many of them are large
    patches = name.startswith("vit")  # of up to 32 pixels
    return _subjects(make, (*(() if patches else small), *SIZES, (56, 112)))


def timm_subjects(name: str) -> Iterator[Subject]:
    import timm

    def make(size: Any) -> nn.Module:
        try:
            return timm.create_model(name, num_classes=7, img_size=size)
        except TypeError:  # it takes images of any size
            return timm.create_model(name, num_classes=7)

    channels = timm.get_pretrained_cfg(name).input_size[0]
    return _subjects(make, SIZES, channels)


def _subjects(make: Callable[[Any], nn.Module], sizes: Any, channels: int = 3) -> Iterator[Subject]:
    """The model in one pair of sizes after the other."""
    for pair in sizes:
        shapes = [(size, size) if isinstance(size, int) else size for size in pair]
        area = shapes[1][0] * shapes[1][1] / (shapes[0][0] * shapes[0][1])
        build = cache(lambda size, pair=pair: _prepared(make(pair[size])))

        def inputs(samples: int, size: int, shapes: Any = shapes, build: Any = build) -> Batch:
            generator = torch.Generator().manual_seed(size)
            kind = next(build(size).parameters()).dtype
            shape = (samples, channels, *shapes[size])
            return (torch.randn(shape, generator=generator, dtype=kind),)

        yield Subject(build, inputs, area)


def _prepared(model: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    model.train()
    large = sum(p.numel() for p in model.parameters()) > LARGE
    return model if large else model.double()
