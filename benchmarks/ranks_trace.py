"""Whether the exchange of statistics makes the host wait: `python -m benchmarks.ranks --trace`.

Steady training steps are profiled, with pairs within the rank and over all ranks. One rank on a GPU
over NCCL goes through the same exchange as several; two ranks on one GPU are tried too, which NCCL
may refuse. Synchronising calls per step are counted, by the names that the profiler gives them.
The rows of one rank are timed too, by the kernels and by plain PyTorch. Without a GPU, gloo runs
the same at a toy size, and the hosts exchange sizes as they do for GPUs. Writes
`results/ranks_trace.csv` and, on a GPU, `results/ranks_rows.csv`.
"""

from __future__ import annotations

import os
import tempfile
import time
import warnings
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from atomsep import AtomLoss, attach
from atomsep.core import distributed, kernels, plain
from atomsep.core.distributed import Ranks
from atomsep.core.statistics import Terms
from benchmarks import record

WAITS = {
    **dict.fromkeys(("cudaStreamSynchronize", "cudaDeviceSynchronize"), "stream"),
    "cudaEventSynchronize": "event",
    "aten::_local_scalar_dense": "item",
}
"""Names of events that make the host wait, and the column that counts them."""

COPIES = ("Memcpy DtoH",)
WARM, STEPS = 40, 20
"""Steps before, in which the watch over the loss looks often, and those that are profiled."""


def profile(rank: int, answers: dict[str, dict[str, float]]) -> None:
    """Counts per step and milliseconds, by where pairs are formed."""
    from torchvision.models import resnet18

    gpu = torch.cuda.is_available()
    device = torch.device("cuda:0" if gpu else "cpu")
    batch, size = (64, 128) if gpu else (4, 32)
    Ranks.several = property(lambda ranks: ranks.group is not None)  # type: ignore[assignment, method-assign]
    if not gpu:
        distributed._at_hand = lambda device: False
    activities = [torch.profiler.ProfilerActivity.CPU]
    if gpu:
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    for name, group in {"within": None, "across": "world"}.items():
        torch.manual_seed(0)
        model = resnet18(num_classes=10).to(device)
        attachment = attach(model, "layer1.1.bn2", AtomLoss(group=group), weight=0.2)
        parallel = DistributedDataParallel(model)
        optimiser = torch.optim.SGD(model.parameters(), lr=0.01)
        x = torch.randn(batch, 3, size, size, device=device)
        y = torch.randint(10, (batch,), device=device)

        def step(
            parallel: Any = parallel, attachment: Any = attachment, optimiser: Any = optimiser
        ) -> None:
            loss = nn.functional.cross_entropy(parallel(x), y) + attachment.loss()  # noqa: B023
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()

        steps, warm = (STEPS, WARM) if gpu else (2, 2)
        for _ in range(warm):
            step()
        _wait(gpu)
        with torch.profiler.profile(activities=activities) as profiled:
            for _ in range(steps):
                step()
        _wait(gpu)
        start = time.perf_counter()
        for _ in range(steps):
            step()
        _wait(gpu)
        taken = 1e3 * (time.perf_counter() - start) / steps
        counts = Counter(dict.fromkeys((*WAITS.values(), "copies", "collectives"), 0))
        for event in profiled.events():
            if event.name in WAITS:
                counts[WAITS[event.name]] += 1
            counts["copies"] += event.name.startswith(COPIES)
            counts["collectives"] += event.name.startswith("c10d::")
        answers[name] = {
            **{column: round(number / steps, 2) for column, number in counts.items()},
            "step_ms": round(taken, 3),
        }


def _wait(gpu: bool) -> None:
    if gpu:
        torch.cuda.synchronize()


def work(rank: int, size: int, store: str, answers: Any) -> None:
    warnings.simplefilter("ignore")
    if torch.cuda.is_available():
        torch.cuda.set_device(0)
    else:
        os.environ["OMP_NUM_THREADS"] = "1"
        torch.set_num_threads(1)
    kind = "nccl" if torch.cuda.is_available() else "gloo"
    patience = timedelta(seconds=120)
    dist.init_process_group(kind, init_method=store, rank=rank, world_size=size, timeout=patience)
    mine: dict[str, Any] = {}
    profile(rank, mine)
    if rank == 0:
        answers.update(mine)
    dist.destroy_process_group()


def time_rows() -> list[dict[str, object]]:
    """Milliseconds of the loss and its gradient for some samples of many, of 255 features."""
    terms, rows = Terms(2, 1e-2, "mean", 1.0, 1.0), []
    for samples, own in ((2048, 256), (16_384, 256), (16_384, 2048)):
        table = torch.rand(samples, 5 + 255, device="cuda")
        count = torch.full((samples,), 64.0, device="cuda")
        absent = torch.zeros(samples, dtype=torch.bool, device="cuda")
        given = table, count, terms, 1.0, slice(0, own), absent, torch.tensor(float(samples)).cuda()
        row: dict[str, object] = {"samples": samples, "rows": own}
        for name, backend in {"kernels": kernels, "plain": plain}.items():

            def run(backend: Any = backend, given: Any = given) -> None:
                backend.pair_loss_of_rows(*given)
                torch.cuda.synchronize()

            row[f"{name}_ms"] = round(record.interleaved_ms({name: run}, 7)[name], 3)
        rows.append(row)
        print(*(f"{column} {value}" for column, value in row.items()), flush=True)
    return rows


def trace() -> None:
    """Write both tables."""
    if torch.cuda.is_available():
        record.append("ranks_rows", time_rows())
    kind = "nccl" if torch.cuda.is_available() else "gloo"
    rows: list[dict[str, object]] = []
    for size in (1, 2):
        with tempfile.TemporaryDirectory() as folder, mp.Manager() as manager:
            answers = manager.dict()
            try:
                mp.spawn(work, (size, Path(folder, "store").as_uri(), answers), size)
            except (mp.ProcessRaisedException, mp.ProcessExitedException) as error:
                reason = str(error).strip().splitlines()[-1]
                print(f"{size} ranks on one device: refused ({reason})", flush=True)
                continue
            for name, numbers in dict(answers).items():
                rows.append({"backend": kind, "ranks": size, "pairs": name, **numbers})
                print(*(f"{column} {value}" for column, value in rows[-1].items()), flush=True)
    record.append("ranks_trace", rows)
