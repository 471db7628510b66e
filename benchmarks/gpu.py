"""Time and memory of the loss on a GPU.

    python -m benchmarks.gpu [--only loss,layers,passes,...] [--turns 9] [--skip-parity]

Runs the kernels' parity tests first and stops if one fails: no speed without the right answer.
Then measures the copy bandwidth and, in the same run, every contender of every case; prints
tables and adds their rows to `results/gpu_*.csv`.

The limit of a case is the time to move four times the latent's bytes at copy bandwidth: the
forward pass reads the latent; the backward pass reads it again, reads the gradient that arrives
from the layers above, and writes the sum of both gradients.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from functools import partial
from typing import Any

import torch

from atomsep.core import kernels
from atomsep.core.layout import Axes, Layout
from atomsep.core.statistics import Known, Reading, Statistics, Terms, Tokens
from benchmarks import alternatives, record, steps
from benchmarks.device import (
    IMAGES,
    LATENTS,
    SEQUENCES,
    beside,
    copy_bandwidth,
    device_ms,
    event_ms,
    extra_peak,
    make_latent,
    node,
    peak_bytes,
    with_kernels,
)


def loss_alone(bandwidth: float) -> None:
    rows = []
    for case, (shape, dtype, axes, channels_last) in LATENTS.items():
        torch.compiler.reset()
        latent = make_latent(shape, dtype, channels_last)
        arriving = torch.randn_like(latent) * 1e-3
        limit = 1e3 * 4 * latent.nbytes / bandwidth
        compiled = torch.compile(alternatives.closed_form_autograd)
        contenders = {
            "paper's sampling": beside(alternatives.sampled_token_pairs, latent, axes, arriving),
            "closed form, eager": beside(alternatives.closed_form_autograd, latent, axes, arriving),
            "closed form, torch.compile": beside(compiled, latent, axes, arriving),
            "atomsep, plain PyTorch": with_kernels("torch", node(latent, axes, arriving)),
            "atomsep, kernels": with_kernels("triton", node(latent, axes, arriving)),
        }
        print(f"\n{case}: limit {limit:.3f} ms")
        for name, run in contenders.items():
            try:
                run()
                memory = extra_peak(run, latent)
                ms = event_ms(run)
                alone = device_ms(run) if name.startswith("atomsep") else float("nan")
            except Exception as error:
                print(f"  {name:28} failed: {str(error).splitlines()[0][:80]}")
                continue
            ratio = ms / limit
            print(
                f"  {name:28} {ms:8.3f} ms  {ratio:6.2f} x limit  extra peak {memory:7.1%}  "
                f"device alone {alone:7.3f} ms, {alone / limit:5.2f} x limit"
            )
            rows.append(
                {"case": case, "contender": name, "ms": round(ms, 4), "limit_ms": round(limit, 4),
                 "ratio_to_limit": round(ratio, 3), "extra_peak_of_latent": round(memory, 4),
                 "copy_TB_s": round(bandwidth / 1e12, 3), "device_ms": round(alone, 4)}
            )  # fmt: skip
    record.append("gpu_loss", rows)


def layers(bandwidth: float) -> None:
    """Layers of networks: the kernels against plain PyTorch and the limit, on the device alone."""
    rows: list[dict[str, object]] = []
    print("\nlayers, device alone, ms: limit, plain PyTorch, kernels, and how many times the limit")
    kinds = [(name, *kind, "channels-last") for name, kind in IMAGES.items()]
    kinds += [(name, *kind, "contiguous") for name, kind in IMAGES.items()]
    kinds += [(name, *kind, "rows") for name, kind in SEQUENCES.items()]
    for name, shape, dtype, memory in kinds:
        latent = make_latent(shape, dtype, memory == "channels-last")
        arriving = torch.randn_like(latent)
        axes: Axes = "channels_last" if memory == "rows" else "channels_first"
        limit = 1e3 * 4 * latent.nbytes / bandwidth
        plain, fused = (
            device_ms(with_kernels(mode, node(latent, axes, arriving)))
            for mode in ("torch", "triton")
        )
        print(
            f"  {name:26} {memory:14} {limit:7.4f} {plain:9.4f} {fused:8.4f}  {fused / limit:6.2f}"
        )
        rows.append(
            {"layer": name, "shape": " x ".join(map(str, shape)), "dtype": str(dtype)[6:],
             "memory": memory, "limit_ms": round(limit, 4), "plain_ms": round(plain, 4),
             "kernels_ms": round(fused, 4)}
        )  # fmt: skip
    record.append("gpu_layers", rows)


def passes() -> None:
    """The device's time of each pass of the kernels, without the host."""
    rows: list[dict[str, object]] = []
    terms = Terms(2, 1e-2, "mean", 1.0, 1.0)
    print("\npasses, device alone, us: forward, with a copy, pairs, backward")
    for case, (shape, dtype, axes, channels_last) in LATENTS.items():
        latent = make_latent(shape, dtype, channels_last).detach()
        reading = Reading(Layout(axes), 0, 2)
        samples, length, _ = reading.layout.sizes(latent)
        count = torch.full((samples,), float(length), device="cuda")
        arriving = torch.randn_like(latent)
        tokens = Tokens(latent, None, None, count, reading)
        _, _, table, mean_direction = kernels.read_atoms(tokens)
        _, slopes = kernels.pair_loss(table, count, terms, 1.0, True)
        assert slopes is not None
        back = tokens, Known(table, mean_direction), arriving, slopes
        times = {
            "forward": partial(kernels.read_atoms, tokens),
            "forward_with_copy": partial(kernels.read_atoms, tokens, True),
            "pairs": partial(kernels.pair_loss, table, count, terms, 1.0, True),
            "backward": partial(kernels.atoms_gradient, *back),
        }
        us = {name: round(1e3 * device_ms(run), 1) for name, run in times.items()}
        print(f"  {case:50} " + "  ".join(f"{value:7.1f}" for value in us.values()))
        rows.append({"case": case, **us})
    record.append("gpu_passes", rows)


def training_steps(only: str, turns: int = 9) -> None:
    """Whole steps with and without the loss, in turns of a few steps each."""
    rows = []
    peaks: list[dict[str, object]] = []
    for case, build in steps.CASES.items():
        if only and only not in case:
            continue
        contenders = build()
        names = list(contenders)
        for run in contenders.values():
            for _ in range(5):
                run()
        if "captured" not in case:  # where all memory was taken before
            held = {name: peak_bytes(run) for name, run in contenders.items()}
            peaks += [
                {"case": case, "contender": name, "peak_mb": round(peak / 1e6, 1),
                 "over_mb": round((peak - held["without"]) / 1e6, 1)}
                for name, peak in held.items()
            ]  # fmt: skip
        times: dict[str, list[float]] = {name: [] for name in names}
        for _ in range(turns):
            for name in names:
                torch.cuda.synchronize()
                start = time.perf_counter()
                for _ in range(steps.TURN):
                    contenders[name]()
                torch.cuda.synchronize()
                times[name].append(1e3 * (time.perf_counter() - start) / steps.TURN)
        plain = statistics.median(times["without"])
        again = statistics.median(times["without, again"])
        print(f"\n{case}: {plain:.2f} ms without (again {again:.2f})")
        for name in names:
            ms = statistics.median(times[name])
            over = statistics.median(
                a / b - 1 for a, b in zip(times[name], times["without"], strict=True)
            )
            print(f"  {name:28} {ms:8.2f} ms  {over:+7.2%}")
            rows.append(
                {"case": case, "contender": name, "ms": round(ms, 3), "over": round(over, 4)}
            )
        for peak in peaks:
            if peak["case"] == case:
                print(f"  {peak['contender']:28} {peak['peak_mb']:8} MB  {peak['over_mb']:+7} MB")
        del contenders
        torch.cuda.empty_cache()
    record.append("gpu_steps", rows)
    if peaks:
        record.append("gpu_steps_memory", peaks)


def statistics_of(samples: int, width: int) -> Statistics:
    table = torch.rand(samples, 5 + width, device="cuda") * 30
    table[:, 2] = table[:, 0] - table[:, 1]
    return Statistics(table, torch.full((samples,), 100.0, device="cuda"))


def pairs_alone() -> None:
    """All pairs: time, memory, and the arithmetic rate against the chip's."""
    rows: list[dict[str, object]] = []
    print("\npairs alone, forward and gradient")
    terms = Terms(2, 1e-2, "mean", 1.0, 1.0)
    peak = 2 * 128 * torch.cuda.get_device_properties(0).multi_processor_count * 1.98e9
    for samples, width in ((128, 63), (1024, 255), (4096, 255), (16384, 255)):
        data = statistics_of(samples, width)

        def run(data: Statistics = data) -> None:
            kernels.pair_loss(data.table, data.count, terms, 1.0, True)

        run()
        memory = peak_bytes(run)
        ms = event_ms(run, repeats=10, warm=2)
        # difference, square and sum forward; twice more with the weighted sum in the gradient
        operations = 3.0 * samples * samples * width * 3
        rate = operations / (1e-3 * ms)
        print(
            f"  M={samples:<6} h'={width:<4} {ms:8.2f} ms  {memory / 1e6:8.1f} MB  "
            f"{rate / 1e12:6.2f} Tflop/s, {rate / peak:5.1%} of fp32 at boost clock"
        )
        rows.append(
            {"M": samples, "width": width, "ms": round(ms, 3), "peak_MB": round(memory / 1e6, 2),
             "tflops": round(rate / 1e12, 2), "share_of_fp32_peak": round(rate / peak, 4)}
        )  # fmt: skip
    record.append("gpu_pairs", rows)


def growth() -> None:
    """Time against M, N and h over two decades, rows and planes."""
    rows: list[dict[str, object]] = []
    base = {"M": 128, "N": 1024, "h": 128}
    sizes = {
        "M": (16, 64, 256, 1024, 1600),
        "N": (128, 512, 2048, 8192, 12800),
        "h": (16, 64, 256, 1024, 1600),
    }
    print("\ngrowth around M=128, N=1024, h=128, bf16: ms, device ms, device ns a thousand numbers")
    for axes in ("channels_last", "channels_first"):
        for varied, values in sizes.items():
            for value in values:
                s = {**base, varied: value}
                first = axes == "channels_first"
                shape = (s["M"], s["h"], s["N"]) if first else (s["M"], s["N"], s["h"])
                latent = torch.randn(shape, device="cuda", dtype=torch.bfloat16).requires_grad_()
                arriving = torch.randn_like(latent)
                run = with_kernels("triton", node(latent, axes, arriving))
                ms, alone = event_ms(run, repeats=10), device_ms(run)
                rate = 1e6 * alone / (latent.numel() / 1e3)
                print(f"  {axes:15} {varied}={value:<6} {ms:8.3f} ms  {alone:8.4f}  {rate:7.2f}")
                rows.append({"axes": axes, **s, "varied": varied, "ms": round(ms, 4),
                             "ns_per_thousand": round(1e6 * ms / (latent.numel() / 1e3), 3),
                             "device_ms": round(alone, 4)})  # fmt: skip
    record.append("gpu_growth", rows)


def main(argv: list[str] | None = None) -> Any:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="loss,layers,passes,pairs,growth,steps")
    parser.add_argument("--case", default="", help="only training steps whose name holds this")
    parser.add_argument("--turns", type=int, default=9, help="of each step; more for less noise")
    parser.add_argument("--skip-parity", action="store_true")
    args = parser.parse_args(argv)
    if not torch.cuda.is_available():
        return "there is no GPU here: run `python -m benchmarks.cpu`, or come back on one"
    if not args.skip_parity:
        tests = [sys.executable, "-m", "pytest", "-q", "-x", "tests/core/kernels"]
        if subprocess.run(tests, check=False).returncode:
            return "the kernels' parity tests failed: no speed is measured"
    torch.manual_seed(0)
    bandwidth = copy_bandwidth()
    print(f"{record.machine()}, torch {torch.__version__}, copy {bandwidth / 1e12:.2f} TB/s")
    wanted = args.only.split(",")
    if "loss" in wanted:
        loss_alone(bandwidth)
    if "layers" in wanted:
        layers(bandwidth)
    if "passes" in wanted:
        passes()
    if "pairs" in wanted:
        pairs_alone()
    if "growth" in wanted:
        growth()
    if "steps" in wanted:
        training_steps(args.case, args.turns)
    return 0


if __name__ == "__main__":
    sys.exit(main())
