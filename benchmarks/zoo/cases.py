"""The models of the table, and the rows of one of them."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version

import torch
from torch import nn

import atomsep
from benchmarks.zoo import diffusion, hub, pictures
from benchmarks.zoo.compare import ByHand, compare
from benchmarks.zoo.truth import SAMPLES, Subject, Truth, find_truths

MOST_TRIES = 24
"""Forms of a model that are tried: sizes, scales and kinds of inputs."""

SUBJECTS = {
    "torchvision": pictures.torchvision_subjects,
    "timm": pictures.timm_subjects,
    "transformers": hub.hub_subjects,
    "diffusers": diffusion.diffusers_subjects,
}


@dataclass(frozen=True)
class Case:
    """A model of a library."""

    library: str
    family: str
    model: str

    @property
    def key(self) -> str:
        """The name that patterns are matched with."""
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
    found = first_that_runs(SUBJECTS[case.library](case.model))
    if isinstance(found, Exception):
        yield case.row(outcome="not built", message=_line(found))
        return
    subject, truths = found
    model = subject.build(0)
    places = chosen(model, subject, truths)
    names = {name: truths[name] for name in places.values() if name in truths}
    for padding in [""] if subject.padded is None else ["", "padded"]:
        batch = (
            subject.padded(SAMPLES) if padding and subject.padded else subject.inputs(SAMPLES, 0)
        )
        try:
            by_hand = ByHand(model, batch, names, bool(padding))
        except Exception as error:  # a model may raise anything
            yield case.row(padding=padding, outcome="not built", message=_line(error))
            continue
        for place, name in places.items():
            if name is None:
                yield case.row(place=place, outcome="refused", message="no layer is recommended")
                continue
            truth = truths.get(name, Truth((), problem="not in every run"))
            outcome = compare(model, batch, name, truth, by_hand)
            if outcome.outcome == "wrong" and next(model.parameters()).dtype == torch.float32:
                model, batch = model.double(), tuple(each.double() for each in batch)
                by_hand = ByHand(model, batch, names, bool(padding))
                outcome = compare(model, batch, name, truth, by_hand)
            yield case.row(
                place=place,
                padding=padding,
                layer=name,
                kind=type(model.get_submodule(name)).__name__,
                shape="x".join(map(str, truth.shape)),
                outcome=outcome.outcome,
                error="" if outcome.error is None else f"{outcome.error:.1e}",
                importance=outcome.importance,
                message=outcome.message,
            )


def first_that_runs(
    subjects: Iterator[Subject],
) -> tuple[Subject, dict[str, Truth]] | Exception:
    """The first form of a model that runs, with its truths; or why none does."""
    problem: Exception | None = None
    for _ in range(MOST_TRIES):
        try:
            subject = next(subjects)
            truths = find_truths(subject)
            if not truths:
                raise ValueError("no layer has tokens")
            return subject, truths
        except StopIteration:
            break
        except Exception as error:  # a model may raise anything
            problem = problem or error
            if isinstance(error, ImportError) or "missing" in str(error):
                break  # no other size helps
    return problem or ValueError("there is no form to try")


def chosen(model: nn.Module, subject: Subject, truths: dict[str, Truth]) -> dict[str, str | None]:
    """The recommended layer, one in the middle, and the last with tokens."""
    known = [name for name, truth in truths.items() if not truth.problem]
    recommended = None
    for example in (subject.padded, partial(subject.inputs, size=0)):
        try:
            if example is not None:
                recommended = recommended or atomsep.layers(model, example(SAMPLES)).recommended
        except Exception:  # the model takes no mask, or no layer has tokens
            continue
    places: dict[str, str | None] = {"recommended": recommended}
    if known:
        places.update(middle=known[len(known) // 2], last=known[-1])
    return places


def _line(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]
