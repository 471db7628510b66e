"""Whole training steps as CUDA graphs, with one launch instead of hundreds.

A small model's step keeps the host busy for longer than the GPU. What a graph replays is exactly
what was captured, so a step must not decide anything on the host: see `replayed`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from atomsep.experiments.errors import ExperimentError

if TYPE_CHECKING:
    from atomsep.experiments.latent import MethodOnLayer
    from atomsep.experiments.task import Context

Compute = Callable[..., Mapping[str, Tensor]]
"""From a batch on the device to the parts of the loss, which train the model on the way.

What it takes besides the batch are constants, such as whether it is a penalty's turn.
"""


def replayed(compute: Compute, context: Context, on_layer: MethodOnLayer) -> Compute:
    """The computation of a step, as a graph if `graph=true` is set.

    It must read nothing but the batch, its constants, the models and the global generators, and
    must not wait for the device.

    Raises:
        ExperimentError: the run cannot be captured.
    """
    if not context.settings.graph:
        return compute
    fabric, method = context.fabric, on_layer.method
    reason = ""
    if fabric.device.type != "cuda":
        reason = f"a CUDA graph needs a GPU, and this run is on {fabric.device.type}"
    elif fabric.world_size > 1:
        reason = "a CUDA graph holds the step of one process, and this run has several"
    elif context.settings.precision == "16-mixed":
        reason = "the loss scale of 16-mixed is decided on the host; set precision=bf16-mixed"
    elif method is not None and not method.capturable:
        reason = "the method draws its samples on the host; use all pairs and tokens"
    if reason:
        otherwise = ", or" if ";" in reason else ";"
        raise ExperimentError(f"graph=true: {reason}{otherwise} omit graph=true")
    return Replayed(compute, fabric.device, on_layer)


class _Captured(NamedTuple):
    """A graph, where it reads its batch, and where it leaves losses and what it measured."""

    graph: torch.cuda.CUDAGraph
    batch: Any
    parts: Mapping[str, Tensor]
    strength: Any


class Replayed:
    """A step's computation that is captured once for every shape of batch, and for all constants.

    The first batch of a kind is computed as usual, which compiles and allocates what the step
    needs; the second is captured. Each of them is a step of the training, none is for warming up.

    Args:
        compute: the computation.
        device: the GPU.
        on_layer: the method, whose gradient a graph measures too.
    """

    def __init__(self, compute: Compute, device: torch.device, on_layer: MethodOnLayer) -> None:
        self.compute, self.on_layer = compute, on_layer
        self.stream = torch.cuda.Stream(device)
        self.pool = torch.cuda.graph_pool_handle()
        self.seen: dict[tuple[Any, ...], _Captured | None] = {}

    def __call__(self, batch: Any, *constants: Hashable) -> Mapping[str, Tensor]:
        """Train on one batch; the parts are overwritten by the next."""
        shapes = tuple((each.shape, each.dtype, each.stride()) for each in _tensors(batch))
        kind = (constants, shapes)
        outside = torch.cuda.current_stream()
        self.stream.wait_stream(outside)
        # All steps run on one stream: autograd remembers on which a gradient was made.
        with torch.cuda.stream(self.stream):
            if kind not in self.seen:
                self.seen[kind] = None
                parts = self.compute(batch, *constants)
            else:
                captured = self.seen[kind]
                if captured is None:
                    captured = self.seen[kind] = self._capture(batch, constants)
                for place, value in zip(_tensors(captured.batch), _tensors(batch), strict=True):
                    place.copy_(value)
                captured.graph.replay()
                parts, self.on_layer.strength = captured.parts, captured.strength
        outside.wait_stream(self.stream)
        return parts

    def _capture(self, batch: Any, constants: tuple[Hashable, ...]) -> _Captured:
        from lightning_utilities.core.apply_func import apply_to_collection

        graph = torch.cuda.CUDAGraph()
        batch = apply_to_collection(batch, Tensor, torch.clone)
        try:
            with torch.cuda.graph(graph, self.pool, self.stream, capture_error_mode="thread_local"):
                parts = self.compute(batch, *constants)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            reason = str(error).strip().splitlines()[0]
            raise ExperimentError(
                f"graph=true: this step cannot be captured into a CUDA graph ({reason}); omit "
                f"graph=true"
            ) from error
        return _Captured(graph, batch, parts, self.on_layer.strength)


def _tensors(batch: Any) -> list[Tensor]:
    """All tensors of a batch, in order."""
    if isinstance(batch, Tensor):
        return [batch]
    if isinstance(batch, Mapping):
        batch = batch.values()
    elif not isinstance(batch, tuple):
        return []
    return [tensor for part in batch for tensor in _tensors(part)]
