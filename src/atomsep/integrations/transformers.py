"""Hugging Face's Trainer: the parts of the loss in its logs.

The loss itself needs nothing from here: attach with `add_to="loss"`.
"""

from __future__ import annotations

from typing import Any

from transformers import TrainerCallback

from atomsep.hooks.attachment import Attachment
from atomsep.integrations.logged import parts, pictures


class AtomCallback(TrainerCallback):
    """Logs the statistics of an attachment whenever the Trainer logs its training loss.

    Callbacks that come later in the list log them too. The Trainer puts those of `report_to` first:
    pass `report_to="none"` and name them after this one, as in
    `callbacks=[AtomCallback(attachment), TensorBoardCallback(writer)]`.

    Args:
        attachment: what `atomsep.attach` returned.
        writer: a TensorBoard `SummaryWriter`, which gets the importance of the last evaluation
            batch as a picture.
        images: how many samples the picture shows.
    """

    def __init__(self, attachment: Attachment, writer: Any = None, images: int = 8) -> None:
        self.attachment, self.writer, self.images = attachment, writer, images

    def on_log(
        self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **others: Any
    ) -> None:
        """Add the statistics of the last training forward to the logs of a training step."""
        if logs is not None and "loss" in logs:
            numbers = parts(self.attachment)
            logs.update(numbers)
            state.log_history[-1].update(numbers)

    def on_evaluate(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """Draw the importance of the last evaluation batch."""
        if self.writer is not None:
            for name, image in pictures(self.attachment, self.images).items():
                self.writer.add_image(name, image, state.global_step)
