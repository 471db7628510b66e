"""What a search tried and chose."""

from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import mean

from atomsep.experiments.files import write_text, writing
from atomsep.experiments.sweeps.grids import Scores, end_of

SETTINGS = ("learning_rate", "weight_decay", "weight")
"""Settings that a search chooses, in this order."""

Point = dict[str, float | None]
"""A value for each of these settings; None for a setting that the experiment does not have."""


@dataclass(frozen=True)
class Trial:
    """A method with one choice of settings over the seeds of the search.

    Attributes:
        stage: the setting that was being chosen.
        method: its name.
        learning_rate: learning rate of the optimiser.
        weight_decay: weight decay of the optimiser; None if the experiment has no such setting.
        weight: weight of the method's loss.
        values: the metric by seed; a failed seed is missing.
        reason: why a seed failed; "" if none did. A trial with a failed seed cannot be chosen.
        broken_down: seeds whose runs broke down; they count like all others.
    """

    stage: str
    method: str
    learning_rate: float
    weight_decay: float | None
    weight: float
    values: dict[int, float]
    reason: str = ""
    broken_down: tuple[int, ...] = ()

    @property
    def mean(self) -> float:
        """Mean of the metric."""
        return mean(self.values.values())

    @property
    def point(self) -> Point:
        """Its settings."""
        return {name: getattr(self, name) for name in SETTINGS}


@dataclass
class Search:
    """What a search tried and chose.

    Attributes:
        experiment: its name.
        metric: the metric that decided.
        higher_is_better: whether a larger metric is better.
        seeds: seeds of the search.
        held: settings that were given.
        learning_rate: the chosen learning rate, or the given one.
        weight_decay: the chosen weight decay, or the given one; None if there is no such setting.
        weights: the chosen weights, by method. A method whose trials all failed has none.
        trials: all trials, in order.
    """

    experiment: str
    metric: str
    higher_is_better: bool
    seeds: tuple[int, ...]
    held: list[str] = field(default_factory=list)
    learning_rate: float = 0.0
    weight_decay: float | None = None
    weights: dict[str, float] = field(default_factory=dict)
    trials: list[Trial] = field(default_factory=list)

    def point(self, method: str) -> Point:
        """The choices for a method so far."""
        chosen = self.learning_rate, self.weight_decay, self.weights.get(method, 0.0)
        return dict(zip(SETTINGS, chosen, strict=True))

    def assignments(self, method: str) -> list[str]:
        """The choices for a method, as settings to change.

        Example:
            >>> search = Search("cola", "mcc", True, (100,), [], 1e-4, 0.1, {"atom": 0.02})
            >>> search.assignments("atom")
            ['learning_rate=0.0001', 'weight_decay=0.1', 'weight=0.02']
        """
        return assigned(self.point(method), method)

    def scores(self, method: str, setting: str) -> Scores:
        """The scores of a setting's values, where the other settings are those chosen so far."""
        sign = 1 if self.higher_is_better else -1
        others = {**self.point(method), setting: None}
        return {
            getattr(trial, setting): -math.inf if trial.reason else sign * trial.mean
            for trial in self.trials
            if trial.method == method and {**trial.point, setting: None} == others
        }

    def at_an_end(self) -> list[str]:
        """A sentence for each choice that lies at an end of what was tried."""
        choices: list[tuple[str, str, str, float | None]] = [
            ("learning rate", "plain", "learning_rate", self.learning_rate),
            ("weight decay", "plain", "weight_decay", self.weight_decay),
        ]
        choices += [(f"weight of {m}", m, "weight", weight) for m, weight in self.weights.items()]
        tried = {
            what: [getattr(trial, setting) for trial in self.trials if trial.method == method]
            for what, method, setting, _ in choices
        }
        return [
            f"The search chose the {end} {what} that it tried, {value:g}; a better one may lie "
            f"beyond"
            for what, _, _, value in choices
            if (end := end_of(value, tried[what]))
        ]

    def summary(self) -> list[str]:
        """Sentences with the choices, and with the number of trials of each method."""
        chosen = [f"learning rate {self.learning_rate:g}"]
        if self.weight_decay is not None:
            chosen.append(f"weight decay {self.weight_decay:g}")
        chosen += [f"weight of {name} {weight:g}" for name, weight in self.weights.items()]
        tried = Counter(trial.method for trial in self.trials)
        counts = [f"plain {tried.pop('plain', 0)}"]
        if len(tried) > 1 and len(set(tried.values())) == 1:
            counts.append(f"every other method {next(iter(tried.values()))}, at plain's choices")
        else:
            counts += [f"{name} {count}, at plain's choices" for name, count in tried.items()]
        return [
            f"Chosen: {', '.join(chosen)}",
            f"Settings tried over the seeds {', '.join(map(str, self.seeds))}: {'; '.join(counts)}",
        ]

    def write(self, path: Path) -> None:
        """Write everything as JSON."""
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, json.dumps(asdict(self), indent=2) + "\n")


def assigned(point: Point, method: str) -> list[str]:
    """A choice of settings as `key=value`, without those that a method does not have."""
    return [
        f"{name}={value!r}"
        for name, value in point.items()
        if value is not None and (name != "weight" or method != "plain")
    ]
