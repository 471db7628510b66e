"""What to write instead of an option that a command does not have."""

from __future__ import annotations

from collections.abc import Sequence

from atomsep.experiments.errors import closest
from atomsep.experiments.registry import EXPERIMENTS
from atomsep.experiments.settings import describe


def hint_of_setting(option: str, words: Sequence[str]) -> str:
    """The way to change a setting, for an unknown option with its name; "" for any other.

    Args:
        option: the unknown option.
        words: the arguments of the command line, which name an experiment.

    Example:
        >>> print(hint_of_setting("--epochs", ["train", "synthetic", "--epochs", "3"]))
        ; epochs is a setting of synthetic: write --set epochs=3
    """
    experiment = next((EXPERIMENTS[word] for word in words if word in EXPERIMENTS), None)
    if experiment is None:
        return ""
    names = [name for name, _, _ in describe(experiment.settings) if name != "method"]
    name = closest(option.lstrip("-").replace("-", "_"), names)
    if name is None:
        return ""
    return f"; {name} is a setting of {experiment.name}: write --set {name}={_value(option, words)}"


def _value(option: str, words: Sequence[str]) -> str:
    """What follows an option."""
    for word, following in zip(words, [*words[1:], "-"], strict=True):
        given, equals, value = word.partition("=")
        if given == option and (equals or not following.startswith("-")):
            return value if equals else following
    return "VALUE"
