"""Train a classifier with cross-entropy and a method's loss, on any data, with any model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from atomsep.experiments.atoms_file import Atoms
from atomsep.experiments.distances import measure_distances
from atomsep.experiments.errors import ExperimentError
from atomsep.experiments.graphs import replayed
from atomsep.experiments.latent import MethodOnLayer, read_importance
from atomsep.experiments.loading import Batch, Feed
from atomsep.experiments.optimisers import set_rate
from atomsep.experiments.predicting import Shown, as_atoms, evaluated_logits, logits_of, predict
from atomsep.experiments.schedules import scheduled
from atomsep.experiments.task import Context, Task

if TYPE_CHECKING:
    from lightning.fabric import Fabric


@contextmanager
def untouched_statistics(model: nn.Module) -> Iterator[None]:
    """Normalise by the statistics of the batch, without updating the running statistics.

    A second view then leaves the evaluated model as a method of one view would.
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


def over_processes(mean: Tensor, samples: int, fabric: Fabric) -> tuple[Tensor, Tensor]:
    """The mean over the samples of all processes, from that over this process's own.

    Args:
        mean: a mean over this process's samples.
        samples: how many these are; other processes may have more or fewer.
        fabric: the processes.

    Returns:
        What to backpropagate, so that the gradients' average over the processes is that of the mean
        over all samples; and that mean, detached.
    """
    if fabric.world_size == 1:
        return mean, mean.detach()
    own = torch.full_like(mean, samples, requires_grad=False)
    sums: Any = fabric.all_reduce(torch.stack([mean.detach() * own, own]), reduce_op="sum")
    return mean * (own * fabric.world_size / sums[1]), sums[0] / sums[1]


class Classification(Task):
    """A classifier in training.

    Args:
        context: settings, method, seed, device.
        model: takes a tensor, or a dictionary as keyword arguments; returns logits, or an object
            with an attribute `logits`.
        optimiser: the optimiser of the model's parameters.
        feed: training batches.
        held_out: makes the batches to evaluate on.
        metrics: makes torchmetrics objects by name.
        shown: the held-out samples, to show some of them with their importance.
        features: the layer's number of features, where the layer itself does not tell.
        schedule: the schedule of the learning rate.
        warmup: share of the training over which the learning rate rises.
        clip: largest norm of the gradient; 0 for no limit.
        corruptions: to evaluate on at the end: by kind, functions of increasing severity, from
            inputs and the samples' indices to corrupted inputs.
    """

    on_layer: MethodOnLayer

    def __init__(
        self,
        context: Context,
        model: nn.Module,
        optimiser: torch.optim.Optimizer,
        feed: Feed,
        held_out: Callable[[], Iterator[Batch]],
        metrics: Callable[[], Mapping[str, Any]],
        *,
        shown: Shown | None = None,
        features: int = 0,
        schedule: str = "constant",
        warmup: float = 0.0,
        clip: float = 0.0,
        corruptions: Mapping[str, Sequence[Callable[[Any, Tensor], Any]]] | None = None,
    ) -> None:
        super().__init__()
        if not 0 <= warmup < 1:
            raise ExperimentError(f"warmup must be a share below 1, not {warmup}")
        self.fabric = context.fabric
        self.settings, self.rate = context.settings, context.settings.learning_rate
        self.feed, self.held_out, self.metrics = feed, held_out, metrics
        self.shown, self.folder, self.batch = shown, context.folder, context.settings.batch
        self.schedule, self.warmup, self.clip = schedule, warmup, clip
        self.corruptions, self.shard = corruptions or {}, context.shard
        self.steps = feed.steps
        self.on_layer = MethodOnLayer(context, model, optimiser, features)
        if context.settings.compile:
            model.compile()
        self.inner = model
        self.model, self.optimiser = self.fabric.setup(model, optimiser)
        self.execute = replayed(self.compute, context, self.on_layer)

    def batches(self, epoch: int, start: int) -> Iterable[Any]:
        """The batches of an epoch, from number `start` on."""
        return self.feed.batches(epoch, start)

    def step(self, batch: Batch, progress: float) -> Mapping[str, Tensor]:
        """One step of the optimiser."""
        self.unreadable.update(batch.unreadable)
        set_rate(self.optimiser, self.rate * scheduled(self.schedule, progress, self.warmup))
        if not self.inner.training:  # setting it takes as long as a small model's forward
            self.model.train()
        return self.execute(batch.to(self.fabric.device))

    def compute(self, batch: Batch) -> Mapping[str, Tensor]:
        """The step on the device, which a graph may capture."""
        logits = logits_of(self.model, batch.inputs)
        loss = nn.functional.cross_entropy(logits, batch.labels)
        task_loss, reported = over_processes(loss, len(batch.labels), self.fabric)
        self.optimiser.zero_grad()
        method = self.on_layer.backward(task_loss, batch.labels, lambda: self._second_view(batch))
        if self.clip:
            # The loop notices what is not a number, and without waiting for the device.
            self.fabric.clip_gradients(
                self.model, self.optimiser, max_norm=self.clip, error_if_nonfinite=False
            )
        self.optimiser.step()
        return {"cross-entropy": reported, **method}

    def _second_view(self, batch: Batch) -> None:
        with untouched_statistics(self.inner):
            logits_of(self.model, batch.inputs if batch.second is None else batch.second)

    @torch.no_grad()
    def evaluate(self) -> dict[str, float]:
        """All metrics on the held-out samples."""
        metrics = {name: metric.to(self.fabric.device) for name, metric in self.metrics().items()}
        parts = [(self._predict(batch.inputs), batch.labels) for batch in self._evaluated_batches()]
        if parts:  # a process may have no samples
            logits, labels = (torch.cat(each) for each in zip(*parts, strict=True))
            for metric in metrics.values():
                metric.update(logits, labels)
        return {name: round(float(metric.compute()), 7) for name, metric in metrics.items()}

    @torch.no_grad()
    def evaluate_once(self) -> dict[str, float]:
        """Mean accuracy over the severities of each corruption, "robust_...", and over all."""
        from torchmetrics import MeanMetric

        right = {kind: MeanMetric().to(self.fabric.device) for kind in self.corruptions}
        first, world = self.shard.rank, self.shard.world
        for batch in self._evaluated_batches() if right else ():
            last = first + world * len(batch.labels)
            indices = torch.arange(first, last, world, device=self.fabric.device)
            first = last
            for kind, severities in self.corruptions.items():
                for corrupt in severities:
                    said = self._predict(corrupt(batch.inputs, indices)).argmax(1)
                    right[kind].update((said == batch.labels).float())
        found = {f"robust_{kind}": float(metric.compute()) for kind, metric in right.items()}
        if found:
            found["robust"] = sum(found.values()) / len(found)
        return {name: round(value, 7) for name, value in found.items()}

    def _evaluated_batches(self) -> Iterator[Batch]:
        """The held-out samples on the device, for the model in eval mode."""
        self.model.eval()
        if self.fabric.world_size > 1:  # each process has its own batch statistics
            for buffer in self.inner.buffers():
                torch.distributed.broadcast(buffer, src=0)
        for batch in self.held_out():
            self.unreadable.update(batch.unreadable)
            yield batch.to(self.fabric.device)

    def _predict(self, inputs: Any) -> Tensor:
        """Logits in float32."""
        return evaluated_logits(self.fabric, self.inner, inputs)

    def describe(self) -> dict[str, Any]:
        """Names of the classes, and what makes the model's inputs."""
        if self.shown is None:
            return {}
        return {"classes": list(self.shown.classes), **self.shown.inputs.describe()}

    def atoms(self, most: int) -> Atoms | None:
        """Held-out samples with their charges, as the evaluated model sees them."""
        binding = self.on_layer.binding
        if self.shown is None or binding is None:
            return None
        self.model.eval()
        samples, labels = self.shown.some(most)
        predictions = predict(
            self.shown.inputs,
            samples,
            fabric=self.fabric,
            model=self.inner,
            importance=partial(read_importance, binding),
            classes=self.shown.classes,
            batch=self.batch,
        )
        return as_atoms(self.shown.inputs, predictions, labels)

    def finish(self) -> list[Path]:
        """Write what makes the model's inputs."""
        if self.shown is not None and self.folder is not None:
            self.shown.inputs.save(self.folder, self.inner)
        return []

    @torch.no_grad()
    def distances(self) -> Tensor | None:
        """Atomic distances of the first held-out samples."""
        inputs = (batch.inputs for batch in self._evaluated_batches())
        return measure_distances(self.inner, self.settings, inputs, self._predict)

    def parts(self) -> dict[str, Any]:
        """Model, optimiser, method."""
        return {"model": self.model, "optimiser": self.optimiser, "method": self.on_layer}
