"""Predictions of a classifier, with the importance of the tokens: in training and afterwards."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from atomsep.experiments.atoms_file import Atoms, spread
from atomsep.experiments.loading import Batch, Unreadable

if TYPE_CHECKING:
    from lightning.fabric import Fabric


class Inputs(ABC):
    """How a family of experiments brings samples into its models.

    What a model needs besides its weights is here, so that a finished run works without its data.

    Attributes:
        kind: what samples are: "images", "sentences" or "numbers".
    """

    kind: ClassVar[str]

    @abstractmethod
    def see(self, samples: Sequence[Any]) -> list[Any]:
        """Samples as the model sees them, one by one.

        Raises:
            ExperimentError: a sample cannot be read.
            TypeError: it is of a kind that the model does not take.
            ValueError: it has a shape that the model does not take.
        """

    @abstractmethod
    def batches(self, seen: Sequence[Any], size: int) -> Iterator[tuple[Sequence[int], Any]]:
        """Which of the samples are in a batch, and the model's arguments."""

    def own(self, charges: Tensor, seen: Any) -> Tensor:
        """Charges of a sample alone, from those of a batch in which it may be padded."""
        return charges

    @abstractmethod
    def columns(self, seen: Sequence[Any]) -> dict[str, Any]:
        """What a file of atoms shows of the samples."""

    def describe(self) -> dict[str, Any]:
        """What `config.json` must hold for `load_run` to prepare the inputs in the same way."""
        return {}

    def save(self, folder: Path, model: nn.Module) -> None:  # noqa: B027
        """Write what is too large for `config.json` into the folder of a run; often nothing."""


@dataclass(frozen=True, eq=False)
class Prediction:
    """What a classifier says about one sample.

    Attributes:
        label: number of the predicted class.
        name: its name.
        probability: its probability.
        probabilities: of all classes, `(K,)`.
        importance: charge per token, `(h, w)` for images and `(N,)` for sentences; with several
            layers, a dictionary by name; None if the method does not measure it.
        seen: the sample as the model saw it: bytes `(3, S, S)`, a `Sentence`, or numbers.
    """

    label: int
    name: str
    probability: float
    probabilities: Tensor
    importance: Any
    seen: Any


@dataclass(frozen=True)
class Shown:
    """The held-out samples, some of which a run shows with their importance.

    Attributes:
        inputs: brings them into the model.
        load: loads a sample by its number.
        labels: their classes.
        classes: names of all classes.
        names: their files, if they are files.
    """

    inputs: Inputs
    load: Callable[[int], Any]
    labels: Sequence[int] | Tensor
    classes: Sequence[str]
    names: Sequence[str] = ()

    def some(self, most: int) -> tuple[list[Any], list[int]]:
        """At most so many samples, spread over all, with their labels."""
        chosen = spread(len(self.labels), most)
        loaded = [(self.load(index), int(self.labels[index])) for index in chosen]
        readable = [pair for pair in loaded if not isinstance(pair[0], Unreadable)]
        return [sample for sample, _ in readable], [label for _, label in readable]


def logits_of(model: nn.Module, inputs: Any) -> Tensor:
    """A model's logits for a batch."""
    output = model(**inputs) if isinstance(inputs, Mapping) else model(inputs)
    logits: Tensor = getattr(output, "logits", output)
    return logits


def evaluated_logits(fabric: Fabric, model: nn.Module, inputs: Any) -> Tensor:
    """Logits in float32, in the precision of the run.

    Not through Fabric's own wrapper: data-parallel processes may have unequal numbers of batches,
    and would wait for each other forever.
    """
    inputs = fabric.strategy.precision.convert_input(inputs)
    with fabric.autocast():
        return logits_of(model, inputs).float()


@torch.no_grad()
def predict(
    inputs: Inputs,
    samples: Sequence[Any],
    *,
    fabric: Fabric,
    model: nn.Module,
    importance: Callable[[], Any],
    classes: Sequence[str],
    batch: int,
    progress: Callable[[int, int], None] | None = None,
) -> list[Prediction]:
    """Predictions for some samples, in their order.

    Args:
        inputs: brings samples into the model.
        samples: the samples.
        fabric: device and precision.
        model: the classifier, in eval mode.
        importance: reads the importance of the model's last forward; None if there is none.
        classes: names of the classes.
        batch: samples per forward.
        progress: told after every batch how many of all samples are done.
    """
    seen = inputs.see(samples)
    found: dict[int, Prediction] = {}
    for numbers, arguments in inputs.batches(seen, batch):
        moved = Batch(arguments, torch.empty(0)).to(fabric.device).inputs
        probabilities = evaluated_logits(fabric, model, moved).softmax(1).cpu()
        charges = importance()
        for row, number in enumerate(numbers):
            label = int(probabilities[row].argmax())
            found[number] = Prediction(
                label,
                classes[label],
                float(probabilities[row, label]),
                probabilities[row],
                _of_row(charges, row, partial(inputs.own, seen=seen[number])),
                seen[number],
            )
        if progress is not None:
            progress(len(found), len(seen))
    return [found[number] for number in range(len(seen))]


def _of_row(charges: Any, row: int, cut: Callable[[Tensor], Tensor]) -> Any:
    if isinstance(charges, Mapping):
        return {name: cut(each[row]).cpu() for name, each in charges.items()}
    return None if charges is None else cut(charges[row]).cpu()


def first_layer(importance: Any) -> Tensor:
    """The importance at the layer of a method, or at the first of several."""
    found: Tensor = next(iter(importance.values())) if isinstance(importance, dict) else importance
    return found


def as_atoms(
    inputs: Inputs, predictions: Sequence[Prediction], labels: Sequence[int]
) -> Atoms | None:
    """Predictions with their labels as columns; None if there are none, or without importance."""
    import numpy as np

    if not predictions or predictions[0].importance is None:
        return None
    rows = [first_layer(each.importance) for each in predictions]
    if len({row.shape for row in rows}) > 1:  # sentences
        rows = list(nn.utils.rnn.pad_sequence(rows, batch_first=True))
    return Atoms(
        charges=torch.stack(rows).numpy().astype(np.float16),
        labels=np.asarray(labels),
        predictions=np.asarray([each.label for each in predictions]),
        **inputs.columns([each.seen for each in predictions]),
    )
