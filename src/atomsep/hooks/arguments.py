"""What `attach` takes besides the model and the layer, and the sentences for natural mistakes."""

from __future__ import annotations

import math
from typing import Any, Literal, NamedTuple

import torch
from torch import nn

from atomsep.core.loss import AtomLoss

Runs = Literal["last", "mean"]
Absent = Literal["error", "zero"]


class Conduct(NamedTuple):
    """What `loss()` does where a layer did not run exactly once in training.

    Attributes:
        runs: which runs since the last `loss()` count. None means the last, with a warning.
        missing: for a layer that did not run.
        in_eval: for a layer that ran in evaluation mode.
    """

    runs: Runs | None = None
    missing: Absent = "error"
    in_eval: Absent = "error"


def check_model(model: Any, target: Any = None) -> None:
    """Raise unless hooks can be put on it.

    Args:
        model: what was passed as the model.
        target: what was passed as the layer, which may be the model.

    Raises:
        TypeError: it is not a model, or one that was scripted.
    """
    if isinstance(model, torch.jit.ScriptModule):
        raise TypeError(
            "a scripted model takes no hooks: attach to the model that torch.jit.script was given"
        )
    if isinstance(model, nn.Module):
        return
    hint = ""
    if isinstance(model, type) and issubclass(model, nn.Module):
        hint = f"; build it first: {model.__name__}(...)"
    elif isinstance(target, nn.Module):
        hint = f"; the model comes first: attach(model, {model!r})"
    elif isinstance(model, str):
        hint = f"; build it first, for example timm.create_model({model!r})"
    raise TypeError(f"the model must be a torch.nn.Module, not {model!r}{hint}")


def check_loss_argument(loss: Any) -> AtomLoss:
    """The loss, or the default one for None.

    Raises:
        TypeError: it is something else, for example the weight.
    """
    if loss is None:
        return AtomLoss()
    if isinstance(loss, AtomLoss):
        return loss
    if isinstance(loss, (int, float)):
        raise TypeError(
            f"the third argument is the loss, an AtomLoss, not {loss!r}; "
            f"for the weight, pass weight={loss!r}"
        )
    called = isinstance(loss, type) and issubclass(loss, AtomLoss)
    hint = "; write AtomLoss() with parentheses" if called else ""
    raise TypeError(f"loss must be an AtomLoss or None, not {loss!r}{hint}")


def check_weight(weight: Any) -> float:
    """The weight as a number.

    Raises:
        TypeError: it is not a number.
        ValueError: it is negative or not finite.
    """
    wrong = f"weight must be a number, not {weight!r} ({type(weight).__name__})"
    if isinstance(weight, (str, bytes, bool)):
        raise TypeError(wrong)
    try:
        number = float(weight)
    except (TypeError, ValueError, RuntimeError):  # tensors and arrays of several numbers, too
        raise TypeError(wrong) from None
    if not (math.isfinite(number) and number >= 0):
        raise ValueError(f"weight must be a finite number of at least 0, not {weight!r}")
    return number


def check_watch(watch: Any) -> bool:
    """Whether to watch gradients, as True or False.

    Raises:
        TypeError: it is neither, for example a word.
    """
    if watch not in (True, False):
        raise TypeError(f"watch_gradients must be True or False, not {watch!r}")
    return bool(watch)


def check_conduct(runs: Any, missing: Any, in_eval: Any) -> Conduct:
    """The three arguments together.

    Raises:
        ValueError: one of them is not a known choice.
    """
    if runs not in (None, "last", "mean"):
        raise ValueError(f'runs must be "last", "mean" or None, not {runs!r}')
    for name, value in {"missing": missing, "in_eval": in_eval}.items():
        if value not in ("error", "zero"):
            raise ValueError(f'{name} must be "error" or "zero", not {value!r}')
    return Conduct(runs, missing, in_eval)
