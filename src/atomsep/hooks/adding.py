"""Add the loss to what a model returns, so that a trainer needs to know nothing about it.

Hugging Face's Trainer calls the model, takes the loss from its output and runs the backward pass.
A forward hook on the model adds the term to that loss. How the Trainer scales it is the one thing
to know. With gradient accumulation it divides the loss by the number of micro-batches, unless it
told the model how many items all of them have (`num_items_in_batch`). It then expects a loss that
is divided already, and multiplies it by the number of processes where the items were counted over
all of them. The model is not told how many micro-batches there are, so the hook asks the Trainer.

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

    @torch.compiler.disable
    def __call__(self, model: nn.Module, args: Any, kwargs: dict[str, Any], output: Any) -> Any:
        """The output with the term in its loss; None to leave it as it is."""
        training = torch.is_grad_enabled() and model.training
        if not (training and self.attachment._switch.on()):
            return None
        if find_loss(output, self.key) is None:
            self._tell_of_no_loss(output)
            return None
        term = self.attachment.loss()
        if kwargs.get(_ITEMS) is not None:
            term = term / _micro_batches()
        return add_to_loss(output, self.key, term)

    def _tell_of_no_loss(self, output: Any) -> None:
        got = f"of shape {tuple(output.shape)}" if isinstance(output, Tensor) else "without a loss"
        self.attachment.tell(
            "add_to",
            f"add_to={self.key!r}: a training forward returned a {type(output).__name__} {got}, "
            f"so no atom loss was added; call the model with labels, or add attachment.loss() "
            f"yourself",
        )


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
        found = output[place] if -len(output) <= int(place) < len(output) else None
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
        fields = getattr(output, "_fields", ())
        return fields.index(key) if key in fields else 0
    return key


def _micro_batches() -> int:
    """What the Trainer that is calling leaves for the model to divide its loss by.

    Raises:
        RuntimeError: nothing that calls is a Trainer.
    """
    trainer = _calling_trainer()
    if trainer is None:
        raise RuntimeError(
            f"the model was called with {_ITEMS}, so its loss is one part of a sum over "
            f"micro-batches, and only transformers.Trainer says how many there are. Attach "
            f"without add_to= and add attachment.loss() divided by their number"
        )
    if getattr(trainer, "loss_is_scaled_for_ga", None) is False:
        return 1  # the Trainer divides it in spite of the number of items
    arguments = trainer.args
    count = getattr(trainer, "current_gradient_accumulation_steps", None)
    count = int(count or arguments.gradient_accumulation_steps)
    if arguments.average_tokens_across_devices:
        replicas = trainer.get_tp_size() if hasattr(trainer, "get_tp_size") else 1
        count *= max(1, trainer.accelerator.num_processes // replicas)
    return count


def _calling_trainer() -> Any:
    """The Trainer whose `training_step` is running in this thread, or None."""
    frame = sys._getframe(1)
    while frame.f_back is not None:
        frame = frame.f_back
        if frame.f_code.co_name == "training_step":
            caller = frame.f_locals.get("self")
            if hasattr(caller, "model_accepts_loss_kwargs"):
                return caller
    return None
