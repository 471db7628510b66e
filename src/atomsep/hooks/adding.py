"""Add the loss to what a model returns, so that a trainer needs to know nothing about it.

Hugging Face's Trainer calls the model, takes the loss from its output and runs the backward pass.
A forward hook on the model adds the term to that loss. What is left to know is how the Trainer
scales it. With gradient accumulation it divides the loss by the number of micro-batches, unless it
has counted the items of all of them (`num_items_in_batch`): then it expects a loss that is divided
already, and multiplies it by the number of processes if it counted over all of those. Nobody tells
the model how many micro-batches there are, so the hook asks the Trainer that is calling.

In a compiled model the hook stays outside the graph, so that the weight can change. Marking it so
loads PyTorch's compiler, so this file is imported when it is first needed.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from atomsep.hooks.containers import entries_of
from atomsep.hooks.switch import Hook
from atomsep.hooks.targets import Key, put_tensor

if TYPE_CHECKING:
    from atomsep.hooks.attachment import Attachment

_ITEMS = "num_items_in_batch"


class LossAdder(Hook):
    """A forward hook on the model that adds the attachment's loss to the one in its output.

    It does nothing in eval mode, without gradients, or while the attachment is paused.

    Args:
        attachment: whose loss to add.
        key: where the output holds the model's own loss; see `find_loss`.
    """

    def __init__(self, attachment: Attachment, key: Key) -> None:
        if isinstance(key, bool) or not isinstance(key, (str, int)):
            raise TypeError(
                f"add_to must be the name or index of the model's loss in its output, for example "
                f'"loss", not {key!r}'
            )
        self.attachment, self.key = attachment, key
        self.handle = attachment.model.register_forward_hook(self, with_kwargs=True)

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def __call__(self, model: nn.Module, args: Any, kwargs: dict[str, Any], output: Any) -> Any:
        """The output with the term in its loss; None to leave it as it is."""
        training = torch.is_grad_enabled() and model.training
        if not (training and self.attachment._switch.on()):
            return None
        loss = find_loss(output, self.key)
        if loss is None or not _trains(loss):
            self._tell_of_no_loss(output, found=loss is not None)
            return None
        term = self.attachment.loss()
        parts = _parts_of_a_step(told=kwargs.get(_ITEMS) is not None)
        return add_to_loss(output, self.key, term if parts == 1 else term / parts)

    def _tell_of_no_loss(self, output: Any, found: bool) -> None:
        names = _names(output)
        losses = [name for name in names if _trains(find_loss(output, name))]
        got, advice = "without a loss", "call the model with labels"
        if names and self.key not in names and (isinstance(self.key, str) or not _fields(output)):
            got = f"without {self.key!r}, but with {', '.join(map(repr, names))}"
            if losses:
                advice = f"pass add_to={' or '.join(map(repr, losses))}"
        if found:
            got = "whose number there has no gradient, so it is not a loss to train"
            advice = "pass the name or index of the loss"
        elif isinstance(output, Tensor):
            got = f"of shape {tuple(output.shape)}"
        self.attachment.tell(
            "add_to",
            f"add_to={self.key!r}: a training forward returned a {type(output).__name__} {got}, "
            f"so no atom loss was added; {advice}, or add attachment.loss() yourself",
        )


def _trains(loss: Tensor | None) -> bool:
    return loss is not None and loss.requires_grad


def _names(output: Any) -> list[str]:
    """The names of what a model returned, where it has names."""
    entries = entries_of(output) or getattr(output, "__dict__", {})
    return [*_fields(output)] or [name for name in entries if isinstance(name, str)]


def _fields(output: Any) -> tuple[str, ...]:
    return getattr(output, "_fields", ()) if isinstance(output, tuple) else ()


def find_loss(output: Any, key: Key) -> Tensor | None:
    """The loss in what a model returned, or None.

    Args:
        output: a mapping or an object with the loss under a name, a tuple or list with the loss at
            an index, or the loss itself.
        key: the name or the index. A name also finds the loss in a tuple that starts with one, and
            in an output that is the loss itself.

    Example:
        >>> find_loss({"loss": torch.tensor(2.0), "logits": torch.zeros(3)}, "loss")
        tensor(2.)
    """
    place = _place(output, key)
    found: Any = None
    if place is None:
        found = output
    elif isinstance(output, Mapping):
        found = output.get(place)
    elif isinstance(output, (tuple, list)):
        index = int(place)
        found = output[index] if -len(output) <= index < len(output) else None
    else:
        found = getattr(output, str(place), None)
    is_loss = isinstance(found, Tensor) and found.is_floating_point() and found.dim() == 0
    return found if is_loss else None


def add_to_loss(output: Any, key: Key, term: Tensor) -> Any:
    """The output with a term added to the loss that `find_loss` finds in it."""
    loss, place = find_loss(output, key), _place(output, key)
    assert loss is not None
    total = loss + term.to(loss.device)
    if place is None or isinstance(output, (Mapping, tuple, list)):
        return put_tensor(output, place, total)
    changed = copy.copy(output)
    setattr(changed, str(place), total)
    return changed


def _place(output: Any, key: Key) -> Key:
    """Index or name of the loss; None where the output is the loss."""
    if isinstance(output, Tensor):
        return None
    if isinstance(output, (tuple, list)) and not isinstance(key, int):
        fields = _fields(output)
        return fields.index(key) if key in fields else 0
    return key


def _parts_of_a_step(told: bool) -> int:
    """How many terms are summed in an optimiser step without being averaged by the trainer.

    Args:
        told: whether the model was told the number of items.

    Raises:
        RuntimeError: it was, but not by a Trainer, so that nobody knows.
    """
    trainer, items = _calling_trainer()
    if trainer is None:
        if told:
            raise RuntimeError(
                f"the model was called with {_ITEMS}, so its loss is one part of a sum over "
                f"micro-batches, and only transformers.Trainer says how many there are. Attach "
                f"without add_to= and add attachment.loss() divided by their number"
            )
        return 1
    parts = 1
    scaled = getattr(trainer, "loss_is_scaled_for_ga", None)
    if scaled is None:
        counted = trainer.model_accepts_loss_kwargs and items is not None
        scaled = counted or trainer.compute_loss_func is not None
    if scaled:  # or so the Trainer takes it, and does not divide the loss
        steps = getattr(trainer, "current_gradient_accumulation_steps", None)
        parts = int(steps or trainer.args.gradient_accumulation_steps)
    if told and trainer.args.average_tokens_across_devices:
        replicas = trainer.get_tp_size() if hasattr(trainer, "get_tp_size") else 1
        parts *= max(1, trainer.accelerator.num_processes // replicas)
    return parts


def _calling_trainer() -> tuple[Any, Any]:
    """The Trainer that runs a training step in this thread, and how many items it counted."""
    frame = sys._getframe(1)
    while frame.f_back is not None:
        frame = frame.f_back
        if frame.f_code.co_name == "training_step":
            variables = frame.f_locals
            if hasattr(variables.get("self"), "model_accepts_loss_kwargs"):
                return variables["self"], variables.get(_ITEMS)
    return None, None
