"""What the exchange costs at scale, on paper: `python -m benchmarks.ranks --links`.

The time of an all-gather is modelled as `latency + bytes received / bandwidth`. On gloo both are
measured here, between processes of this machine, with the largest error of the fit. For NCCL they
are estimates from published figures (see `NETWORKS`). Before each exchange on GPUs, the hosts tell
each other their sizes in an all-reduce of gloo, which goes around a ring twice; a step of the ring
is measured here too (`results/ranks_hosts.csv`). The time of the pairs comes from the rate
that `python -m benchmarks.gpu` measured (`results/gpu_pairs.csv`), and the step from
`results/gpu_steps.csv`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from atomsep.core.handshake import connect_hosts, largest_of_hosts
from benchmarks import record

SIZES = (1 << 8, 1 << 12, 1 << 16, 1 << 18, 1 << 20)
"""Numbers that each rank sends."""

REPEATS, IN_A_ROW = 40, 20


class Network(NamedTuple):
    """Microseconds per all-gather and per step of a ring, and gigabytes per second and GPU."""

    start_us: float
    hop_us: float
    gb_per_s: float


NETWORKS = {
    8: Network(20, 1, 450),
    64: Network(20, 1, 50),
    1024: Network(20, 1, 50),
}
"""By GPUs. Within a node of 8, NVLink 4: 900 GB/s in both directions together (NVIDIA H100 data
sheet). Between nodes, one port of 400 Gbit/s InfiniBand per GPU (NVIDIA DGX H100 user guide).
Latencies are assumed, as orders of magnitude, and have no source. Real links reach less than these
bandwidths."""

PER_GPU, FEATURES, STEP_MS = 256, 256, 54.9
"""Samples per GPU, features of the layer, and a step: ResNet-50 in bf16 on one H200."""

HOST_HOP_US = 64
"""Microseconds of a step of gloo's ring, between three processes of one machine that was busy
(`results/ranks_hosts.csv`). Between machines it is assumed to be the same."""

PAIRS_TFLOPS = 23.5
"""Rate of the pairs' kernels at 16,384 samples on an H200, at 9 operations per pair and feature."""


def measure(rank: int, answers: dict[int, float]) -> None:
    """Seconds of an all-gather, by numbers that each rank sends.

    The fastest of many, because other programs share the machine.
    """
    for size in SIZES:
        block = torch.zeros(size)
        everything = block.new_empty(size * dist.get_world_size())
        taken = []
        for _ in range(REPEATS):
            dist.barrier()
            start = time.perf_counter()
            dist.all_gather_into_tensor(everything, block)
            taken.append(time.perf_counter() - start)
        answers[size] = min(taken)


def fit(times: dict[int, float], ranks: int) -> tuple[float, float, float]:
    """Latency in seconds, bytes per second, and the largest relative error of the two.

    Relative errors are minimised, so that small messages count as much as large ones.
    """
    received = torch.tensor([4.0 * size * (ranks - 1) for size in times], dtype=torch.float64)
    seconds = torch.tensor(list(times.values()), dtype=torch.float64)
    columns = torch.stack([torch.ones_like(received), received], 1) / seconds.unsqueeze(1)
    latency, per_byte = torch.linalg.lstsq(columns, torch.ones(len(times), 1).double())[0].flatten()
    error = (latency + received * per_byte) / seconds - 1
    return latency.item(), 1 / per_byte.item(), error.abs().max().item()


def estimate(gpus: int) -> dict[str, object]:
    """Bytes, milliseconds and shares of a step with one GPU's samples, at so many GPUs."""
    network, samples = NETWORKS[gpus], PER_GPU * gpus
    width = FEATURES - 1 + 5 + 1  # the nucleus, the other statistics, the count
    received = 4 * gpus * (1 + PER_GPU) * width  # a block's first row says what the others are
    exchange = 1e-3 * (network.start_us + network.hop_us * (gpus - 1))
    exchange += 1e3 * received / (1e9 * network.gb_per_s)
    operations = 9 * PER_GPU * samples * (FEATURES - 1)
    pairs = 1e3 * operations / (1e12 * PAIRS_TFLOPS)
    hosts = 1e-3 * HOST_HOP_US * hops(gpus)
    return {
        "gpus": gpus,
        "samples": samples,
        "megabytes": round(received / 1e6, 1),
        "exchange_ms": round(exchange, 2),
        "exchange_percent": round(100 * exchange / STEP_MS, 2),
        "pairs_ms": round(pairs, 2),
        "pairs_percent": round(100 * pairs / STEP_MS, 2),
        "hosts_ms": round(hosts, 2),
        "hosts_percent": round(100 * hosts / STEP_MS, 2),
    }


def hops(ranks: int) -> int:
    """Steps of an all-reduce of gloo, one after another: twice around the ring."""
    return 2 * (ranks - 1)


def page_row(gpus: int) -> str:
    """A row of the table of the documentation."""
    found = estimate(gpus)
    cells = [f"{gpus:,}", f"{found['samples']:,}", f"{_short(found['megabytes'])} MB"]
    for name in ("exchange", "pairs", "hosts"):
        cells += [f"{_short(found[f'{name}_ms'])} ms", f"{_short(found[f'{name}_percent'])} %"]
    return f"| {' | '.join(cells)} |"


def _short(value: Any) -> str:
    """Two digits, or all before the point."""
    return f"{value:.2g}" if value < 100 else f"{value:.0f}"


def measure_hosts(rank: int, answers: dict[str, float]) -> None:
    """Seconds in which hosts find their largest sizes; the fastest of many, each a mean."""
    hosts, taken = connect_hosts(None), []
    for _ in range(REPEATS):
        dist.barrier()
        start = time.perf_counter()
        for _ in range(IN_A_ROW):
            largest_of_hosts(hosts, [rank])
        taken.append((time.perf_counter() - start) / IN_A_ROW)
    answers["seconds"] = min(taken)


def scale(on_ranks: Callable[..., dict[Any, Any]]) -> None:
    """Write `results/ranks_links.csv` and `results/ranks_hosts.csv`, and print the page's table."""
    rows: list[dict[str, object]] = []
    for ranks in (2, 3, 4):
        latency, bandwidth, error = fit(on_ranks(ranks, measure), ranks)
        rows.append(
            {
                "ranks": ranks,
                "latency_us": round(1e6 * latency),
                "mb_per_s": round(bandwidth / 1e6),
                "error_percent": round(100 * error),
            }
        )
        print(*(f"{name} {value}" for name, value in rows[-1].items()), flush=True)
    record.append("ranks_links", rows)
    compare_hosts(on_ranks)
    for gpus in NETWORKS:
        print(page_row(gpus))


def compare_hosts(on_ranks: Callable[..., dict[Any, Any]]) -> None:
    """Write `results/ranks_hosts.csv`."""
    rows: list[dict[str, object]] = []
    for ranks in (2, 3):
        taken = 1e6 * on_ranks(ranks, measure_hosts)["seconds"]
        one = {"us": round(taken), "us_per_hop": round(taken / hops(ranks))}
        rows.append({"ranks": ranks, "hops": hops(ranks), **one})
        print(*(f"{name} {value}" for name, value in rows[-1].items()), flush=True)
    record.append("ranks_hosts", rows)
