"""The models of the table, and the rows of one of them."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import torch
from torch import nn

import atomsep
from benchmarks.zoo import diffusion, hub, pictures
from benchmarks.zoo.compare import Outcome, compare
from benchmarks.zoo.truth import SAMPLES, Subject, Truth, find_truths

SUBJECTS = {
    "torchvision": pictures.torchvision_subject,
    "timm": pictures.timm_subject,
    "transformers": hub.hub_subject,
    "diffusers": diffusion.diffusers_subject,
}


@dataclass(frozen=True)
class Case:
    """A model of a library."""

    library: str
    family: str
    model: str

    @property
    def key(self) -> str:
        return f"{self.library}:{self.family}"

    def row(self, **values: str) -> dict[str, str]:
        """A row of the table."""
        known = {"library": self.library, "family": self.family, "model": self.model}
        return {**known, "version": version(self.library), "torch": torch.__version__, **values}


def all_cases() -> list[Case]:
    """Every model, by the rules of the libraries."""
    cases = [Case("torchvision", name, name) for name in pictures.torchvision_names()]
    cases += [Case("timm", family, name) for family, name in pictures.timm_names().items()]
    cases += [Case("diffusers", name, name) for name in diffusion.diffusers_names()]
    cases += [Case("transformers", family, name) for family, name in hub.family_names()]
    return cases


def rows_of(case: Case) -> Iterator[dict[str, str]]:
    """Three layers of a model, with and without padding."""
    warnings.simplefilter("ignore")
    try:
        subject = SUBJECTS[case.library](case.model)
        truths = find_truths(subject)
    except Exception as error:  # a model may raise anything
        text = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        yield case.row(outcome="not built", message=text)
        return
    model = subject.build(0)
    for place, name in chosen(model, subject, truths).items():
        if name is None:
            yield case.row(place=place, outcome="refused", message="no layer is recommended")
            continue
        truth = truths.get(name, Truth((), problem="not in every run"))
        kinds = [""] if subject.padded is None else ["", "padded"]
        for padding in kinds:
            batch = subject.padded(SAMPLES) if padding else subject.inputs(SAMPLES, 0)  # type: ignore[misc]
            found: Outcome = compare(model, batch, name, truth, bool(padding))
            yield case.row(
                place=place,
                padding=padding,
                layer=name,
                kind=type(model.get_submodule(name)).__name__,
                shape="x".join(map(str, truth.shape)),
                outcome=found.outcome,
                error="" if found.error is None else f"{found.error:.1e}",
                importance=found.importance,
                message=found.message,
            )


def chosen(model: nn.Module, subject: Subject, truths: dict[str, Truth]) -> dict[str, str | None]:
    """The recommended layer, one in the middle, and the last with tokens."""
    known = [name for name, truth in truths.items() if not truth.problem]
    example: Any = subject.inputs(SAMPLES, 0)
    try:
        recommended = atomsep.layers(model, example).recommended
    except ValueError:
        recommended = None
    places: dict[str, str | None] = {"recommended": recommended}
    if known:
        places.update(middle=known[len(known) // 2], last=known[-1])
    return places
