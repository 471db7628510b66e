"""Lightning: a callback that adds the loss to the training step of an unchanged LightningModule."""

from __future__ import annotations

from functools import wraps
from typing import Any

from torch import Tensor, nn

from atomsep.hooks.adding import add_to_loss, find_loss
from atomsep.hooks.attachment import Attachment
from atomsep.hooks.copies import attachments
from atomsep.integrations.logged import check_attachment, parts, pictures, prefixes

try:
    from lightning.pytorch import Callback
except ImportError:  # the same library under its earlier name
    from pytorch_lightning import Callback  # type: ignore[assignment]


class AtomModeling(Callback):
    """Adds the loss of an attachment to what `training_step` returns.

    Lightning then treats the sum like any loss: it divides it for gradient accumulation, scales it
    for mixed precision, and runs the backward pass. Validation, testing and prediction are not
    changed. Learned maps are moved to the module's device, trained with the first parameter group
    of the optimiser, averaged over processes, and saved in the checkpoint.

    The statistics of the attachment and the loss that was added go to the trainer's loggers every
    `log_every_n_steps`; loggers that take images get the importance of the first validation batch.

    Args:
        attachment: what `atomsep.attach` returned for the LightningModule or a module inside it.
        images: how many samples of the validation batch to draw; 0 for none.

    Raises:
        TypeError: it is given something else, for example the module.
        ValueError: when the fit starts, if the module optimises manually, if it does not contain
            the attached model, or if that model adds the loss itself (`add_to=`).

    Example:
        ```python
        attachment = atomsep.attach(module, "net.layer1.1.bn2", weight=0.2)
        trainer = lightning.Trainer(callbacks=[AtomModeling(attachment)])
        trainer.fit(module, loader)
        ```

    With several attachments, pass one callback for each.
    """

    def __init__(self, attachment: Attachment, *, images: int = 8) -> None:
        self.attachment = check_attachment(attachment, type(self).__name__)
        self.images = images
        self._term: Tensor | None = None
        self._logged = 0
        self._step: Any = None
        alike = [a for a in attachments(attachment.model) if a.layers == attachment.layers]
        self._number = alike.index(attachment) if attachment in alike else 0

    @property
    def state_key(self) -> str:
        """Where the checkpoint keeps the learned maps; each attachment has a place of its own."""
        number = {"number": self._number} if self._number else {}
        return self._generate_state_key(layers=self.attachment.layers, **number)

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Wrap the training step."""
        if stage != "fit":
            return
        self._check(pl_module)

        @wraps(pl_module.training_step)
        def training_step(*args: Any, **kwargs: Any) -> Any:
            before = self._losses_taken()
            output = training_step.__wrapped__(*args, **kwargs)
            # Lightning skips or refuses a step without a loss.
            if self._step is not training_step or find_loss(output, "loss") is None:
                return output
            term = self._loss(already=self._losses_taken() > before)
            self._term = term.detach()
            return add_to_loss(output, "loss", term)

        self._step = pl_module.training_step = training_step

    def _losses_taken(self) -> int:
        return sum(tap.forwards.read().losses for tap in self.attachment._taps)

    def _loss(self, already: bool) -> Tensor:
        """The attachment's loss; `already` says whether training_step has called it."""
        try:
            return self.attachment.loss()
        except RuntimeError as error:
            if not already:
                raise
            raise RuntimeError(
                "training_step calls attachment.loss(), and AtomModeling adds that loss too: leave "
                "out one of them"
            ) from error

    def _check(self, pl_module: Any) -> None:
        name = type(pl_module).__name__
        if not pl_module.automatic_optimization:
            raise ValueError(
                f"{name} optimises manually (automatic_optimization=False), so only its own code "
                f"knows which loss to add to: leave out AtomModeling and add attachment.loss() to "
                f"the loss in training_step"
            )
        if not any(module is self.attachment.model for module in pl_module.modules()):
            raise ValueError(
                f"the attached {type(self.attachment.model).__name__} is not part of {name}; "
                f"attach to this {name} or to a module inside it"
            )
        if self.attachment._adder is not None:
            raise ValueError(
                "the model is attached with add_to=, so it adds the loss itself; leave out add_to= "
                "or AtomModeling"
            )

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Give the module its own training step back, or that of the callbacks that are left."""
        if stage != "fit" or self._step is None:
            return
        mine, self._step = self._step, None
        step, around = pl_module.training_step, None
        while step is not mine and hasattr(step, "__wrapped__"):
            step, around = step.__wrapped__, step
        if step is not mine:
            return  # wrapped by somebody else; ours adds nothing from now on
        if around is not None:
            around.__wrapped__ = mine.__wrapped__
            return
        del pl_module.training_step
        if pl_module.training_step != mine.__wrapped__:  # it was an attribute before
            pl_module.training_step = mine.__wrapped__

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Do the same where a fit ends with an error, which skips the teardown."""
        self.teardown(trainer, pl_module, "fit")

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Bring the learned maps to the device and to the optimiser, before its state is loaded."""
        maps = list(self.attachment.parameters())
        if not maps:
            return
        self.attachment.criterion.to(pl_module.device)
        self.attachment.load_state_dict(trainer.strategy.broadcast(self.attachment.state_dict()))
        groups = [group for optimizer in trainer.optimizers for group in optimizer.param_groups]
        known = {id(parameter) for group in groups for parameter in group["params"]}
        # Not a group of their own, which schedulers made before it would not know.
        groups[0]["params"].extend(p for p in maps if id(p) not in known)

    def on_after_backward(self, trainer: Any, pl_module: Any) -> None:
        """Average the gradients of the learned maps, which the module's wrapper does not know."""
        if trainer.world_size > 1:
            for parameter in self._outside(pl_module):
                if parameter.grad is not None:
                    mean = trainer.strategy.reduce(parameter.grad, reduce_op="mean")
                    parameter.grad.copy_(mean)

    def _outside(self, pl_module: nn.Module) -> list[nn.Parameter]:
        inside = {id(parameter) for parameter in pl_module.parameters()}
        return [p for p in self.attachment.parameters() if id(p) not in inside]

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Log the parts of the loss, as often as Lightning logs."""
        step, every = trainer.global_step, trainer.log_every_n_steps
        due = every and step != self._logged and step % every == 0
        if not (due and trainer.loggers and trainer.is_global_zero and self._term is not None):
            return
        self._logged = step
        together = _together(trainer)
        prefix = "atom/"
        if len(together) > 1:
            [prefix, *_] = prefixes(self.attachment, together).values()
        numbers = {f"{prefix}loss": self._term.item(), **parts(self.attachment, together)}
        for logger in trainer.loggers:
            logger.log_metrics(numbers, step=step - 1)  # Lightning counts steps from 0

    def on_validation_batch_end(
        self,
        trainer: Any,
        pl_module: Any,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Draw the importance of the first validation batch."""
        first = batch_idx == dataloader_idx == 0 and not trainer.sanity_checking
        if not (first and self.images and trainer.is_global_zero):
            return
        takers = [logger for logger in trainer.loggers if _image_method(logger) is not None]
        together = _together(trainer)
        drawn = pictures(self.attachment, self.images, together) if takers else {}
        for logger in takers:
            for name, image in drawn.items():
                _image_method(logger)(name, image, trainer.global_step)

    def state_dict(self) -> dict[str, Any]:
        """State of the learned maps, for the checkpoint."""
        return self.attachment.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load the state of the learned maps from a checkpoint."""
        self.attachment.load_state_dict(state_dict)


def _together(trainer: Any) -> list[Attachment]:
    """The attachments of all such callbacks."""
    return [each.attachment for each in trainer.callbacks if isinstance(each, AtomModeling)]


def _image_method(logger: Any) -> Any:
    """How a logger takes an image: (name, bytes (3, height, width), step); None if it does not."""
    if hasattr(logger, "log_image"):  # Weights & Biases
        return lambda name, image, step: logger.log_image(
            key=name, images=[image.permute(1, 2, 0).numpy()], step=step
        )
    return getattr(getattr(logger, "experiment", None), "add_image", None)  # TensorBoard
