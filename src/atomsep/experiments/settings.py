"""Settings of an experiment: typed, documented, and set by `key=value`.

Each family of experiments has its own dataclass. An experiment gives defaults to its fields and
other defaults for its tiny form; the command line changes single ones.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from atomsep.experiments.errors import ExperimentError, unknown

S = TypeVar("S", bound="Settings")

LARGEST = 2**31 - 1
"""The largest whole number that a setting may be."""


LAYOUTS = ("auto", "channels_first", "channels_last", "length_first")
"""Where the tokens of a layer's output can be."""


def setting(
    default: Any,
    help: str,
    *,
    low: float | None = None,
    high: float | None = None,
    choices: Sequence[str | int] = (),
) -> Any:
    """A field of settings: its default, what it means, and what it may be."""
    metadata = {"help": help, "low": low, "high": high, "choices": tuple(choices)}
    if isinstance(default, dict):  # one per object
        return field(default_factory=default.copy, metadata=metadata)
    return field(default=default, metadata=metadata)


@dataclass(frozen=True)
class Settings:
    """Settings that every experiment has. Together with the seed they determine the result.

    `evaluate_every` is the exception: unless a family of experiments has evaluation points of its
    own, it only determines what is recorded on the way.
    """

    epochs: int = setting(1, "passes over the training samples", low=1)
    batch: int = setting(64, "samples per step, over all devices", low=1)
    learning_rate: float = setting(0.1, "learning rate of the optimiser", low=0)
    weight: float | None = setting(
        None, "factor of the method's loss; if not set, the experiment's own for the method", low=0
    )
    layer: str = setting("", "layer that the method acts on, by its dotted name or a pattern")
    layout: str = setting(
        "auto",
        "position of the tokens in the layer's output",
        choices=LAYOUTS,
    )
    precision: str = setting(
        "32-true",
        "precision of the computation",
        choices=("32-true", "bf16-mixed", "16-mixed", "64-true"),
    )
    compile: bool = setting(False, "compile the model with torch.compile")
    graph: bool = setting(False, "replay each step as a CUDA graph, for small models on a GPU")
    evaluate_every: int = setting(1, "epochs between evaluations; 0: only at the end", low=0)
    average_last: int = setting(
        1, "number of last evaluations whose metrics are averaged; if fewer, all", low=1
    )
    method: dict[str, Any] = setting({}, "options of the method, as method.NAME=VALUE")  # noqa: RUF009

    def evaluation_points(self, steps: int) -> list[int]:
        """Numbers of steps after which the model is evaluated, in order; the last is the end.

        These are the ends of epochs: every `evaluate_every`, and the `average_last` last.

        Args:
            steps: steps per epoch.

        Example:
            >>> Settings(epochs=5, evaluate_every=2, average_last=2).evaluation_points(10)
            [20, 40, 50]
        """
        every, last = self.evaluate_every, self.epochs - self.average_last
        return [
            epoch * steps
            for epoch in range(1, self.epochs + 1)
            if epoch > last or (every and epoch % every == 0)
        ]

    @classmethod
    def only_recorded(cls) -> tuple[str, ...]:
        """Names of the settings on which no result depends.

        The result is the mean over the last epochs, however often the model was evaluated before.
        """
        own_points = cls.evaluation_points is not Settings.evaluation_points
        return () if own_points else ("evaluate_every",)

    def digest(self) -> str:
        """Eight hexadecimal digits that distinguish these settings from others.

        Settings on which no result depends count as 0, so runs that differ only in them are one.

        Example:
            >>> Settings(evaluate_every=5).digest() == Settings(evaluate_every=0).digest()
            True
        """
        values = dataclasses.asdict(self) | dict.fromkeys(self.only_recorded(), 0)
        text = json.dumps(values, sort_keys=True)
        return hashlib.blake2b(text.encode(), digest_size=4).hexdigest()


def describe(settings: Settings) -> list[tuple[str, str, str]]:
    """Name, value and meaning of every setting, for help texts."""
    rows = []
    for each in dataclasses.fields(settings):
        value, choices = getattr(settings, each.name), each.metadata["choices"]
        help = each.metadata["help"] + (f" ({', '.join(map(str, choices))})" if choices else "")
        rows.append((each.name, "" if value in (None, {}) else str(value), help))
    return rows


def change(settings: S, assignments: Sequence[str]) -> S:
    """Settings with single ones changed by `key=value`.

    Raises:
        ExperimentError: no setting has that name, or the value does not fit.

    Example:
        >>> change(Settings(), ["epochs=3", "weight=0.5", "method.norm=1"]).epochs
        3
    """
    values: dict[str, Any] = {}
    options = dict(settings.method)
    for assignment in assignments:
        key, equals, text = assignment.partition("=")
        key = key.strip().replace("-", "_")
        if not equals:
            raise ExperimentError(f"{assignment!r} sets nothing; write key=value")
        if key == "method":
            raise ExperimentError(
                f"{assignment!r} is not a setting; choose a method with --method, and set its "
                f"options with method.NAME=VALUE"
            )
        if key.startswith("method."):
            options[key.removeprefix("method.")] = _literal(text)
        else:
            values[key] = text
    return override(settings, {**values, "method": options})


def override(settings: S, values: Mapping[str, Any]) -> S:
    """Settings with other values for some fields, checked; texts are read as the field's type.

    Raises:
        ExperimentError: no setting has that name, or the value does not fit.
    """
    fields = {each.name: each for each in dataclasses.fields(settings)}
    kinds = typing.get_type_hints(type(settings))
    changed = {}
    for key, value in values.items():
        if key not in fields:
            raise unknown("setting", key, fields)
        changed[key] = _checked(key, value, kinds[key], fields[key].metadata)
    return dataclasses.replace(settings, **changed)


def _checked(key: str, value: Any, kind: Any, metadata: Mapping[str, Any]) -> Any:
    if isinstance(kind, types.UnionType):
        if value is None or value == "none":
            return None
        kind = next(k for k in typing.get_args(kind) if k is not types.NoneType)
    if isinstance(value, str) and kind is not str:
        value = _read(key, value, kind)
    if kind is float and isinstance(value, int):
        value = float(value)
    choices, low, high = metadata["choices"], metadata["low"], metadata["high"]
    if choices and value not in choices:
        raise unknown("choice", str(value), map(str, choices), f"for {key}")
    if high is None and kind is int:
        high = LARGEST
    if kind is float and not math.isfinite(value):
        raise ExperimentError(f"{key} must be a finite number, not {value}")
    if high is not None and value > high:
        raise ExperimentError(f"{key} must be at most {high}, not {value}")
    if low is not None and value < low:
        raise ExperimentError(f"{key} must be at least {low:g}, not {value}")
    return value


def _read(key: str, text: str, kind: Any) -> Any:
    if kind is bool:
        if text.lower() in ("true", "yes", "1"):
            return True
        if text.lower() in ("false", "no", "0"):
            return False
        raise ExperimentError(f"{key} must be true or false, not {text!r}")
    try:
        return kind(text)
    except ValueError:
        noun = "a whole number" if kind is int else "a number"
        raise ExperimentError(f"{key} must be {noun}, not {text!r}") from None


def _literal(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
