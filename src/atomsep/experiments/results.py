"""Results of paired seeds: kept on disk seed by seed, and compared.

`results.jsonl` holds one line for every finished seed, with its configuration and the trained
weights (a hundred numbers a model), so an interrupted run goes on where it stopped and the figures
need no second training. `results.json` and `results.csv` are for readers.
"""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from scipy import stats

import atomsep
from atomsep.experiments.mixtures import (
    DEVIATION,
    FEATURES,
    MEAN,
    SUB_UNITS,
    MixtureClassifier,
)
from atomsep.experiments.training import METHODS, Setting, Trained, fresh_model


@dataclass(frozen=True)
class SeedResult:
    """Both methods on one seed.

    Attributes:
        seed: the seed.
        accuracy: by method, between 0 and 1.
        weights: by method, the trained model's state as lists of numbers.
    """

    seed: int
    accuracy: dict[str, float]
    weights: dict[str, dict[str, Any]] = field(repr=False)

    @classmethod
    def of(cls, seed: int, trained: dict[str, Trained]) -> SeedResult:
        """The result of trained models."""
        return cls(
            seed,
            {method: run.accuracy for method, run in trained.items()},
            {
                method: {name: value.tolist() for name, value in run.model.state_dict().items()}
                for method, run in trained.items()
            },
        )

    def model(self, method: str, activation: str = "sigmoid") -> MixtureClassifier:
        """The trained model, rebuilt from its weights."""
        model = fresh_model(self.seed, activation)
        state = self.weights[method]
        model.load_state_dict({name: torch.tensor(value) for name, value in state.items()})
        return model.eval()


@dataclass(frozen=True)
class Comparison:
    """A paired difference, second minus first, with its t interval; NaN for a single seed.

    Attributes:
        difference: mean over seeds.
        low: lower end of the 95 % confidence interval of the mean.
        high: upper end.
        p_value: of the paired t test, two-sided.
    """

    difference: float
    low: float
    high: float
    p_value: float


def compare(first: Sequence[float], second: Sequence[float]) -> Comparison:
    """Compare two methods over the same seeds by a paired t test.

    Example:
        >>> result = compare([0.90, 0.91, 0.92], [0.92, 0.93, 0.93])
        >>> print(f"{result.difference:.4f}, {result.low:.4f} to {result.high:.4f}")
        0.0167, 0.0023 to 0.0310
    """
    differences = [b - a for a, b in zip(first, second, strict=True)]
    mean = sum(differences) / len(differences)
    if len(differences) < 2:
        return Comparison(mean, float("nan"), float("nan"), float("nan"))
    if len(set(differences)) == 1:  # no spread: the t statistic is not defined
        return Comparison(mean, mean, mean, 1.0 if mean == 0 else 0.0)
    test = stats.ttest_1samp(differences, 0)
    interval = test.confidence_interval(0.95)
    return Comparison(mean, float(interval.low), float(interval.high), float(test.pvalue))


def configuration(setting: Setting) -> dict[str, Any]:
    """What must be equal for a finished seed to be used again."""
    return {
        **asdict(setting),
        "loss": str(atomsep.AtomLoss()),
        "mixture": {"mean": MEAN, "deviation": DEVIATION, "sub_units": SUB_UNITS},
        "features": FEATURES,
        "versions": {"atomsep": atomsep.__version__, "torch": torch.__version__},
    }


class UnreadableResultsError(ValueError):
    """A results file holds something else."""


class Store:
    """The finished seeds of one configuration in an output folder.

    Lines of other configurations in the file are left as they are.

    Args:
        folder: made if it is not there.
        setting: the configuration.
        fresh: forget all finished seeds.

    Raises:
        UnreadableResultsError: a line of the file cannot be read.
    """

    def __init__(self, folder: Path, setting: Setting, *, fresh: bool = False) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / "results.jsonl"
        self.configuration = configuration(setting)
        self.lines = []
        if self.path.exists() and not fresh:
            self.lines = self.path.read_text(encoding="utf-8").splitlines()
        self.finished = {result.seed: result for result in map(self._read, self.lines) if result}

    def _read(self, line: str) -> SeedResult | None:
        try:
            record = json.loads(line)
            if record.pop("configuration") != self.configuration:
                return None
            return SeedResult(**record)
        except (ValueError, KeyError, TypeError, AttributeError):
            number = self.lines.index(line) + 1
            raise UnreadableResultsError(
                f"line {number} of {self.path} is not a result; remove it, or start anew with "
                f"--fresh"
            ) from None

    def add(self, result: SeedResult) -> None:
        """Keep a finished seed; the file is whole at every moment."""
        record = {"configuration": self.configuration, **asdict(result)}
        self.lines.append(json.dumps(record))
        write_whole(self.path, "\n".join(self.lines) + "\n")
        self.finished[result.seed] = result


def write_tables(
    folder: Path, setting: Setting, results: Sequence[SeedResult], bayes: float
) -> Comparison:
    """Write results.csv (a line for every seed) and results.json (with the configuration)."""
    first, second = ([result.accuracy[method] for result in results] for method in METHODS)
    comparison = compare(first, second)
    rows = io.StringIO()
    writer = csv.writer(rows, lineterminator="\n")
    writer.writerow(["seed", *METHODS, "difference"])
    for result, a, b in zip(results, first, second, strict=True):
        writer.writerow([result.seed, a, b, round(b - a, 12)])
    write_whole(folder / "results.csv", rows.getvalue())
    report = {
        "configuration": configuration(setting),
        "bayes_rate": bayes,
        "seeds": [{"seed": result.seed, "accuracy": result.accuracy} for result in results],
        "difference": {name: _or_null(value) for name, value in asdict(comparison).items()},
    }
    write_whole(folder / "results.json", json.dumps(report, indent=2) + "\n")
    return comparison


def _or_null(value: float) -> float | None:
    """JSON has no NaN."""
    return None if value != value else value


def write_whole(path: Path, text: str) -> None:
    """Write a file so that a reader finds the old text or the new one, never a part."""
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    part.write_text(text, encoding="utf-8")
    os.replace(part, path)
