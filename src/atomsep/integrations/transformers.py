"""Hugging Face's Trainer: the parts of the loss in its logs.

The loss itself needs nothing from here: attach with `add_to="loss"`.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import Any

from torch import Tensor
from transformers import TrainerCallback

from atomsep.hooks.attachment import Attachment
from atomsep.integrations.logged import check_attachment, parts, pictures


class AtomCallback(TrainerCallback):
    """Logs the statistics of an attachment whenever the Trainer logs its training loss.

    They reach the Trainer's own reporters (`report_to=`): when the training starts, the callback
    moves to the front, since callbacks see what those before them have added. TensorBoard and
    Weights & Biases also get the importance of the last evaluation batch as a picture. With several
    attachments, pass one callback for each.

    Args:
        attachment: what `atomsep.attach` returned.
        writer: a TensorBoard `SummaryWriter` of your own, which gets the pictures too.
        images: how many samples a picture shows; 0 for no pictures.

    Raises:
        TypeError: it is given something else than an attachment, for example the model.
    """

    def __init__(self, attachment: Attachment, writer: Any = None, images: int = 8) -> None:
        self.attachment = check_attachment(attachment, type(self).__name__)
        self.writer, self.images = writer, images

    def on_train_begin(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """Move in front of the reporters, with all callbacks of this kind."""
        handler = _calling_handler()
        if handler is not None:
            order = sorted(handler.callbacks, key=lambda each: not isinstance(each, AtomCallback))
            handler.callbacks = order  # a new list: the handler is going through the old one

    def on_log(
        self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **others: Any
    ) -> None:
        """Add the statistics of the last training forward to the logs of a training step."""
        if logs is not None and "loss" in logs:
            numbers = parts(self.attachment, self._together())
            logs.update(numbers)
            state.log_history[-1].update(numbers)

    def on_evaluate(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """Draw the importance of the last evaluation batch."""
        others_too = _callbacks()
        boards = [self.writer, *(getattr(each, "tb_writer", None) for each in others_too)]
        boards = list({id(board): board for board in boards if board is not None}.values())
        sites = [each._wandb for each in others_too if getattr(each, "_wandb", None) is not None]
        if not (self.images and state.is_world_process_zero and (boards or sites)):
            return
        drawn: dict[str, Tensor] = {}
        with suppress(RuntimeError):  # there may be no importance before the first training step
            drawn = pictures(self.attachment, self.images, self._together())
        for name, image in drawn.items():
            for board in boards:
                board.add_image(name, image, state.global_step)
            for site in sites:
                shown = site.Image(image.permute(1, 2, 0).numpy())
                site.log({name: shown, "train/global_step": state.global_step})

    def _together(self) -> list[Attachment]:
        """The attachments of all callbacks of this kind."""
        alike = [each.attachment for each in _callbacks() if isinstance(each, AtomCallback)]
        return alike or [self.attachment]


def _callbacks() -> list[Any]:
    handler = _calling_handler()
    return [] if handler is None else list(handler.callbacks)


def _calling_handler() -> Any:
    """What calls the callbacks of the Trainer; it does not pass itself or the others to them."""
    frame = sys._getframe(1)
    while frame.f_back is not None:
        frame = frame.f_back
        if frame.f_code.co_name == "call_event" and "self" in frame.f_locals:
            return frame.f_locals["self"]
    return None
