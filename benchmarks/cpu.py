"""Time and memory of the loss on the CPU.

    python -m benchmarks.cpu

Prints tables and adds their rows to `results/cpu_time.csv`, `cpu_growth.csv` and
`cpu_memory.csv`. Time is that of loss and gradient for a latent that is there already.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

import atomsep
from atomsep import AtomLoss
from benchmarks import alternatives, record


def with_gradient(
    loss: Callable[[Tensor], Tensor], shape: tuple[int, ...], channels_first: bool
) -> Callable[[], None]:
    latent = torch.randn(shape).requires_grad_()

    def run() -> None:
        latent.grad = None
        loss(latent.flatten(2).transpose(1, 2) if channels_first else latent).backward()

    return run


CONTENDERS: dict[str, Callable[[Tensor], Tensor]] = {
    "paper: sampled pairs and tokens": alternatives.sampled_token_pairs,
    "AtomLoss.paper(): the same, closed form": AtomLoss.paper(),
    "all tokens and pairs, autograd": alternatives.closed_form_autograd,
    "AtomLoss(): all tokens and pairs": AtomLoss(),
}

CASES = {
    "DCGAN 128 x 64 x 32 x 32": ((128, 64, 32, 32), True),
    "ResNet-18 64 x 64 x 24 x 24": ((64, 64, 24, 24), True),
    "BERT-base 32 x 128 x 768": ((32, 128, 768), False),
}


def time_cases() -> None:
    rows = []
    for case, (shape, channels_first) in CASES.items():
        times = record.interleaved_ms(
            {name: with_gradient(loss, shape, channels_first) for name, loss in CONTENDERS.items()}
        )
        paper = times["paper: sampled pairs and tokens"]
        print(f"\n{case}, float32")
        for name, value in times.items():
            print(f"  {name:42} {value:8.1f} ms   {value / paper:5.2f} x the paper's sampling")
            ratio = round(value / paper, 3)
            rows.append(
                {"case": case, "contender": name, "ms": round(value, 2), "ratio_to_paper": ratio}
            )
    record.append("cpu_time", rows)


def growth() -> None:
    """Time against M, N and h: linear in N and h; in M linear until pairs count."""
    rows = []
    base = {"M": 64, "N": 256, "h": 64}
    print("\ngrowth of AtomLoss() around M=64, N=256, h=64")
    for axis, sizes in {
        "M": (16, 64, 256, 1024),
        "N": (64, 256, 1024, 4096),
        "h": (16, 64, 256, 1024),
    }.items():
        for size in sizes:
            shape = {**base, axis: size}
            run = with_gradient(AtomLoss(), (shape["M"], shape["N"], shape["h"]), False)
            value = record.interleaved_ms({"": run}, repeats=7)[""]
            rate = value / (shape["M"] * shape["N"] * shape["h"] / 1e6)
            print(f"  {axis}={size:<5} {value:8.1f} ms   {rate:6.2f} ms a million numbers")
            rows.append(
                {**shape, "varied": axis, "ms": round(value, 2),
                 "ms_per_million": round(rate, 3)}
            )  # fmt: skip
    record.append("cpu_growth", rows)


def held_bytes(run: Callable[[], Any]) -> tuple[int, Any]:
    """Bytes that a computation leaves allocated, by the allocator's own record."""
    gc.collect()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recording:
        result = run()
    return sum(event.self_cpu_memory_usage for event in recording.key_averages()), result


MODELS: dict[str, tuple[Callable[[], nn.Sequential], str, str]] = {
    "convolution -> convolution": (
        lambda: nn.Sequential(nn.Conv2d(8, 64, 3, padding=1), nn.Conv2d(64, 8, 1)),
        "0",
        "kept by the model, nobody writes",
    ),
    "batch norm -> relu": (
        lambda: nn.Sequential(nn.Conv2d(8, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU()),
        "1",
        "not kept by the model",
    ),
    "batch norm -> relu in place": (
        lambda: nn.Sequential(nn.Conv2d(8, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(True)),
        "1",
        "overwritten in place",
    ),
}


def memory() -> None:
    """What attaching keeps between forward and backward, beyond what the model keeps."""
    rows = []
    print("\nkept between forward and backward beyond the model's own, share of the latent")
    for dtype in (torch.float32, torch.bfloat16):
        for size in (8, 32):
            for case, (build, target, why) in MODELS.items():
                model = build().to(dtype)
                x = torch.randn(64, 8, size, size, dtype=dtype)

                def plain(model: nn.Module = model, x: Tensor = x) -> Tensor:
                    return model(x).sum()

                plain().backward()
                own, out = held_bytes(plain)
                out.backward()
                with atomsep.attach(model, target, weight=1.0) as attachment:

                    def attached(
                        attachment: atomsep.Attachment = attachment,
                        plain: Callable[[], Tensor] = plain,
                    ) -> Tensor:
                        return plain() + attachment.loss()

                    for _ in range(2):  # the first steps find out who writes
                        attached().backward()
                    with_loss, out = held_bytes(attached)
                    out.backward()
                latent = 64 * 64 * size * size * dtype.itemsize
                share = (with_loss - own) / latent
                tokens = size * size
                print(f"  {str(dtype)[6:]:9} N={tokens:<5} h=64  {case:28} {share:7.1%}   {why}")
                rows.append(
                    {"case": case, "latent": why, "dtype": str(dtype)[6:], "N": tokens, "h": 64,
                     "extra_bytes": with_loss - own, "share_of_latent": round(share, 4)}
                )  # fmt: skip
    record.append("cpu_memory", rows)


if __name__ == "__main__":
    torch.manual_seed(0)
    print(f"{record.machine()}, torch {torch.__version__}")
    memory()
    time_cases()
    growth()
