"""The image models: every classifier of torchvision, the smallest model of every timm family."""

from __future__ import annotations

import csv
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks.zoo.truth import Subject

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


def torchvision_subject(name: str) -> Subject:
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

    small: Any = ((32, (64, 96)), (32, 64))  # many of them are large
    return _first_that_runs(make, (*small, *SIZES, (28, 56)))


def timm_subject(name: str) -> Subject:
    import timm

    def make(size: Any) -> nn.Module:
        try:
            return timm.create_model(name, num_classes=7, img_size=size)
        except TypeError:  # it takes images of any size
            return timm.create_model(name, num_classes=7)

    channels = timm.get_pretrained_cfg(name).input_size[0]
    return _first_that_runs(make, SIZES, channels)


def _first_that_runs(make: Callable[[Any], nn.Module], sizes: Any, channels: int = 3) -> Subject:
    """The subject in the first pair of sizes in which the model runs in both."""
    problem: Exception | None = None
    for pair in sizes:
        shapes = [(size, size) if isinstance(size, int) else size for size in pair]
        area = shapes[1][0] * shapes[1][1] / (shapes[0][0] * shapes[0][1])
        try:
            models = [_prepared(make(size)) for size in pair]
            kind = next(models[0].parameters()).dtype

            def inputs(samples: int, size: int, shapes: Any = shapes, kind: Any = kind) -> Any:
                generator = torch.Generator().manual_seed(size)
                shape = (samples, channels, *shapes[size])
                return (torch.randn(shape, generator=generator, dtype=kind),)

            with torch.no_grad():
                for size in (1, 0):
                    models[size](*inputs(2, size))
        except Exception as error:  # whatever a model raises for a size that it does not take
            problem = problem or error
            continue
        return Subject(lambda size, models=models: models[size], inputs, area)
    assert problem is not None
    raise problem


def _prepared(model: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    model.train()
    large = sum(p.numel() for p in model.parameters()) > LARGE
    return model if large else model.double()
