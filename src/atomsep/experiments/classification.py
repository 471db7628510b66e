"""Train a classifier with cross-entropy and a method's loss, whatever the data and the model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from atomsep.experiments.errors import ExperimentError
from atomsep.experiments.latent import MethodOnLayer
from atomsep.experiments.loading import Batch, Feed
from atomsep.experiments.randomness import seed_step
from atomsep.experiments.schedules import scheduled
from atomsep.experiments.task import Context, Task


@contextmanager
def untouched_statistics(model: nn.Module) -> Iterator[None]:
    """Batch norms use the statistics of their batch, and learn nothing from it for evaluation.

    So that a method with a second view evaluates the same kind of model as one without.
    """
    norms = [
        module
        for module in model.modules()
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.track_running_stats
    ]
    for norm in norms:
        norm.track_running_stats = False
    try:
        yield
    finally:
        for norm in norms:
            norm.track_running_stats = True


class Classification(Task):
    """A classifier in training.

    Args:
        context: settings, method, seed, device.
        model: takes a tensor, or the arguments of a dictionary; returns logits, or an object
            that has `logits`.
        optimiser: of the model's parameters.
        feed: training batches.
        held_out: batches to evaluate on.
        metrics: makes torchmetrics objects by name.
        features: of the layer, for methods with parameters.
        schedule: of the learning rate.
        warmup: share of the training over which the learning rate rises.
        clip: largest norm of the gradient; 0 for any.
    """

    def __init__(
        self,
        context: Context,
        model: nn.Module,
        optimiser: torch.optim.Optimizer,
        feed: Feed,
        held_out: Callable[[], Iterator[Batch]],
        metrics: Callable[[], Mapping[str, Any]],
        *,
        features: int = 0,
        schedule: str = "constant",
        warmup: float = 0.0,
        clip: float = 0.0,
    ) -> None:
        super().__init__()
        if not 0 <= warmup < 1:
            raise ExperimentError(f"warmup must be a share below 1, not {warmup}")
        settings, self.fabric = context.settings, context.fabric
        self.seed, self.rate = context.seed, settings.learning_rate
        self.feed, self.held_out, self.metrics = feed, held_out, metrics
        self.schedule, self.warmup, self.clip = schedule, warmup, clip
        self.steps = feed.steps
        self.on_layer = MethodOnLayer(
            model,
            context.method,
            layer=settings.layer,
            layout=settings.layout,
            weight=settings.weight,
            features=features,
            seed=context.seed,
            options=settings.method,
        )
        if self.on_layer.method is not None:
            self.on_layer.method.to(self.fabric.device)
            learned = list(self.on_layer.method.parameters())
            if learned:
                optimiser.add_param_group({"params": learned})
        self.inner = model
        self.model, self.optimiser = self.fabric.setup(model, optimiser)

    def batches(self, epoch: int, start: int) -> Iterable[Any]:
        """The batches of an epoch from the one with number `start` on."""
        return self.feed.batches(epoch, start)

    def step(self, batch: Batch, progress: float) -> Mapping[str, Tensor]:
        """One step of the optimiser."""
        self.unreadable.update(batch.unreadable)
        batch = batch.to(self.fabric.device)
        for group in self.optimiser.param_groups:
            group["lr"] = self.rate * scheduled(self.schedule, progress, self.warmup)
        if not self.inner.training:  # setting it takes as long as a small model's forward
            self.model.train()
        task_loss = nn.functional.cross_entropy(self.logits(batch.inputs), batch.labels)
        method_loss = self.on_layer.loss(batch.labels, lambda: self._second_view(batch, progress))
        self.optimiser.zero_grad()
        self.fabric.backward(task_loss if method_loss is None else task_loss + method_loss)
        self.on_layer.average_gradients(self.fabric)
        if self.clip:
            self.fabric.clip_gradients(self.model, self.optimiser, max_norm=self.clip)
        self.optimiser.step()
        parts = {"cross-entropy": task_loss.detach()}
        if method_loss is not None:
            parts["method"] = method_loss.detach()
        return parts

    def logits(self, inputs: Any, model: nn.Module | None = None) -> Tensor:
        """What the model says of a batch."""
        model = self.model if model is None else model
        output = model(**inputs) if isinstance(inputs, Mapping) else model(inputs)
        logits: Tensor = getattr(output, "logits", output)
        return logits

    def _second_view(self, batch: Batch, progress: float) -> None:
        seed_step(self.seed, "second view", repr(progress))
        with untouched_statistics(self.inner):
            self.logits(batch.inputs if batch.second is None else batch.second)

    @torch.no_grad()
    def evaluate(self) -> dict[str, float]:
        """All metrics on the samples held out."""
        self.model.eval()
        if self.fabric.world_size > 1:  # every process has batch statistics of its own
            for buffer in self.inner.buffers():
                torch.distributed.broadcast(buffer, src=0)
        metrics = {name: metric.to(self.fabric.device) for name, metric in self.metrics().items()}
        for batch in self.held_out():
            self.unreadable.update(batch.unreadable)
            batch = batch.to(self.fabric.device)
            # Not through Fabric: data-parallel, processes may have unequal numbers of batches, and
            # wait for each other in vain.
            inputs = self.fabric.strategy.precision.convert_input(batch.inputs)
            with self.fabric.autocast():
                logits = self.logits(inputs, self.inner).float()
            for metric in metrics.values():
                metric.update(logits, batch.labels)
        return {name: round(float(metric.compute()), 7) for name, metric in metrics.items()}

    def parts(self) -> dict[str, Any]:
        """Model, optimiser, method."""
        return {"model": self.model, "optimiser": self.optimiser, "method": self.on_layer}
