"""What `benchmarks.gpu` measures with: the latents, the loss on them, time and memory on a GPU."""

from __future__ import annotations

import statistics
from collections.abc import Callable

import torch
from torch import Tensor

from atomsep import AtomLoss, use_kernels
from atomsep.core.layout import Axes, Layout
from benchmarks import steps

LATENTS: dict[str, tuple[tuple[int, ...], torch.dtype, Axes, bool]] = {
    "ResNet-50 256 x 256 x 56 x 56 bf16, channels-last": (
        (256, 256, 56, 56), torch.bfloat16, "channels_first", True,
    ),
    "ResNet-50 256 x 256 x 56 x 56 bf16, contiguous": (
        (256, 256, 56, 56), torch.bfloat16, "channels_first", False,
    ),
    "DCGAN 128 x 64 x 32 x 32 fp32": ((128, 64, 32, 32), torch.float32, "channels_first", False),
    "BERT-base 32 x 128 x 768 bf16": ((32, 128, 768), torch.bfloat16, "channels_last", False),
}  # fmt: skip


BF16, FP32 = torch.bfloat16, torch.float32
IMAGES: dict[str, tuple[tuple[int, ...], torch.dtype]] = {
    "ResNet-18, stage 1": ((256, 64, 56, 56), BF16),
    "ResNet-18, stage 2": ((256, 128, 28, 28), BF16),
    "ResNet-18, stage 3": ((256, 256, 14, 14), BF16),
    "ResNet-18, stage 4": ((256, 512, 7, 7), BF16),
    "ResNet-50, stage 2": ((256, 512, 28, 28), BF16),
    "ResNet-50, stage 3": ((256, 1024, 14, 14), BF16),
    "ResNet-50, stage 4": ((256, 2048, 7, 7), BF16),
    "AlexNet, conv 2": ((256, 192, 27, 27), FP32),
    "Inception v3, mixed 5": ((64, 288, 35, 35), FP32),
    "VGG-16, conv 4": ((64, 512, 28, 28), FP32),
    "CIFAR ResNet-18, stage 1": ((128, 64, 32, 32), FP32),
    "CIFAR ResNet-18, stage 4": ((128, 512, 4, 4), FP32),
    "DCGAN, third block": ((128, 128, 16, 16), FP32),
}
SEQUENCES: dict[str, tuple[tuple[int, ...], torch.dtype]] = {
    "ViT-B/16": ((256, 197, 768), BF16),
    "BERT-large": ((16, 512, 1024), BF16),
    "GPT-2": ((8, 1024, 768), BF16),
}
"""Layers of networks at usual batches: images in both memory formats, sequences as rows."""


def make_latent(shape: tuple[int, ...], dtype: torch.dtype, channels_last: bool) -> Tensor:
    latent = torch.randn(shape, device="cuda", dtype=dtype)
    if channels_last:
        latent = latent.to(memory_format=torch.channels_last)
    return latent.requires_grad_()


def node(latent: Tensor, axes: Axes, arriving: Tensor) -> Callable[[], None]:
    """The loss as attached: the latent passes through, its gradient arrives from above."""
    criterion, layout = AtomLoss(), Layout(axes)

    def run() -> None:
        measured = criterion.measure(latent, None, layout, passing="alias", weight=1.0)
        loss = criterion.from_statistics(measured.statistics)
        torch.autograd.grad([loss, measured.passed], latent, [None, arriving])

    return run


def beside(
    loss: Callable[[Tensor], Tensor], latent: Tensor, axes: Axes, arriving: Tensor
) -> Callable[[], None]:
    """Any other loss: autograd adds its gradient to the one that arrives."""

    def run() -> None:
        through = latent.view_as(latent)
        value = loss(Layout(axes).tokens(through))
        torch.autograd.grad([value, through], latent, [None, arriving])

    return run


def with_kernels(mode: str, run: Callable[[], None]) -> Callable[[], None]:
    def switched() -> None:
        with use_kernels(mode):
            run()

    return switched


def event_ms(run: Callable[[], object], repeats: int = 30, warm: int = 5) -> float:
    """Median milliseconds between device events around a call."""
    times = []
    for turn in range(warm + repeats):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        run()
        end.record()
        end.synchronize()
        if turn >= warm:
            times.append(start.elapsed_time(end))
    return statistics.median(times)


def device_ms(run: Callable[[], object]) -> float:
    """The same without the host: the call is captured into a graph, and the graph replayed."""
    return event_ms(steps.capture(run))


def copy_bandwidth() -> float:
    """Bytes a second, read and written, of a large copy on the device."""
    source = torch.randn(1 << 30, device="cuda", dtype=torch.bfloat16)
    target = torch.empty_like(source)
    return 2 * source.nbytes / (1e-3 * event_ms(lambda: target.copy_(source)))


def peak_bytes(run: Callable[[], object]) -> int:
    """Most bytes that are held at a time, beside what was there before."""
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    run()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def extra_peak(run: Callable[[], None], latent: Tensor) -> float:
    """Peak bytes beside the gradient itself, as share of the latent."""
    return (peak_bytes(run) - latent.nbytes) / latent.nbytes
