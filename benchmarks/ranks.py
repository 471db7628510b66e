"""Losses over several processes: how exact they are, and what their exchange costs.

    python -m benchmarks.ranks              exactness and cost
    python -m benchmarks.ranks --links      latency and bandwidth of gloo, and the model of scale
    python -m benchmarks.ranks --trace      calls that wait for the device, on a GPU

Three processes share a batch, and data-parallel training averages their gradients. The error is
that of the gradient of a small model against one process on the whole batch, once with equal parts
and once with parts of 5, 1 and 7 samples. Each library's loss is compared with itself. The cost is
the time that `loss()` takes of a training step of ResNet-18 in two processes, with pairs over both
and within each. Writes `results/ranks_exact.csv` and `results/ranks_cost.csv`.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn

from atomsep import AtomLoss, attach
from benchmarks import record

FEATURES = 8
PARTS = {"equal": (4, 4, 4), "uneven": (5, 1, 7)}
STEPS = 12

Loss = Callable[[Tensor, Tensor], Tensor]
"""From latents `(M, N, h)` and labels `(M,)` to a loss, over all ranks if there are several."""


def atoms(**arguments: Any) -> Loss:
    criterion = AtomLoss(**arguments)
    return lambda latent, labels: criterion(latent)


def metric_learning(latent: Tensor, labels: Tensor) -> Tensor:
    from pytorch_metric_learning.losses import NTXentLoss
    from pytorch_metric_learning.utils.distributed import DistributedLossWrapper

    loss = NTXentLoss()
    several = dist.is_initialized() and dist.get_world_size() > 1
    wrapped = DistributedLossWrapper(loss) if several and not ALONE else loss
    value: Tensor = wrapped(latent.mean(1), labels)
    return value


def lightly(latent: Tensor, labels: Tensor) -> Tensor:
    from lightly.loss import NTXentLoss

    value: Tensor = NTXentLoss(gather_distributed=not ALONE)(latent.mean(1), latent[:, 0])
    return value


def lightly_vicreg(latent: Tensor, labels: Tensor) -> Tensor:
    from lightly.loss import VICRegLoss

    value: Tensor = VICRegLoss(gather_distributed=not ALONE)(latent.mean(1), latent[:, 0])
    return value


ALONE = False
"""Whether this process computes the loss of the whole batch by itself."""

LOSSES: dict[str, Callable[[], Loss]] = {
    "atomsep": lambda: atoms(group=None if ALONE else "world"),
    "atomsep, group=None": lambda: atoms(group=None),
    "pytorch-metric-learning, NTXentLoss": lambda: metric_learning,
    "lightly, NTXentLoss": lambda: lightly,
    "lightly, VICRegLoss": lambda: lightly_vicreg,
}


def gradient(make: Callable[[], Loss], x: Tensor, labels: Tensor) -> Tensor:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Linear(16, FEATURES)).double()
    make()(model(x), labels).backward()
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


def exactness(rank: int, answers: dict[str, str], name: str, kind: str) -> None:
    global ALONE
    sizes = PARTS[kind]
    torch.manual_seed(1)
    x = torch.randn(sum(sizes), 6, 3, dtype=torch.float64)
    labels = torch.arange(sum(sizes)) % 3
    found = gradient(LOSSES[name], x.split(sizes)[rank], labels.split(sizes)[rank])
    dist.all_reduce(found)
    ALONE = True
    expected = gradient(LOSSES[name], x, labels)
    error = (found / len(sizes) - expected).norm() / expected.norm()
    answers["error"] = f"{error.item():.1e}"


def cost(rank: int, answers: dict[str, dict[str, float]]) -> None:
    from torch.nn.parallel import DistributedDataParallel
    from torchvision.models import resnet18

    for name, group in {"within": None, "across": "world"}.items():
        torch.manual_seed(0)
        model = resnet18(num_classes=10)
        attachment = attach(model, "layer1.1.bn2", AtomLoss(group=group), weight=0.2)
        parallel = DistributedDataParallel(model)
        x, y = torch.randn(16, 3, 64, 64), torch.randint(10, (16,))
        steps, losses = [], []
        for _ in range(STEPS):
            dist.barrier()
            start = time.perf_counter()
            task = nn.functional.cross_entropy(parallel(x), y)
            dist.barrier()  # so that the exchange is not charged for the slower forward
            before = time.perf_counter()
            loss = attachment.loss()
            losses.append(time.perf_counter() - before)
            (task + loss).backward()
            steps.append(time.perf_counter() - start)
        answers[name] = {"step_ms": 1e3 * median(steps[2:]), "loss_ms": 1e3 * median(losses[2:])}


def work(
    rank: int, size: int, store: str, answers: Any, what: Callable[..., None], *arguments: str
) -> None:
    os.environ["OMP_NUM_THREADS"] = "1"
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=size)
    mine: dict[Any, Any] = {}
    what(rank, mine, *arguments)
    if rank == 0:
        answers.update(mine)
    dist.barrier()
    dist.destroy_process_group()


def on_ranks(size: int, what: Callable[..., None], *arguments: str) -> dict[Any, Any]:
    with tempfile.TemporaryDirectory() as folder, mp.Manager() as manager:
        answers = manager.dict()
        store = Path(folder, "store").as_uri()
        mp.spawn(work, (size, store, answers, what, *arguments), size)
        return dict(answers)


def main() -> None:
    if "--trace" in sys.argv:
        from benchmarks.ranks_trace import trace

        trace()
    elif "--links" in sys.argv:
        from benchmarks.ranks_scale import scale

        scale(on_ranks)
    else:
        compare()


def compare() -> None:
    rows: list[dict[str, object]] = []
    for name in LOSSES:
        rows.append({"loss": name})
        for kind in PARTS:
            try:
                rows[-1][kind] = on_ranks(3, exactness, name, kind)["error"]
            except (mp.ProcessRaisedException, mp.ProcessExitedException):
                rows[-1][kind] = "fails"
        print(*rows[-1].values(), sep="\t", flush=True)
    record.append("ranks_exact", rows)
    times = on_ranks(2, cost)
    costs: list[dict[str, object]] = []
    for name, taken in times.items():
        share = 100 * taken["loss_ms"] / taken["step_ms"]
        costs.append(
            {
                "pairs": name,
                **{k: round(v, 2) for k, v in taken.items()},
                "percent": round(share, 2),
            }
        )
    record.append("ranks_cost", costs)
    for row in costs:
        print(*row.values(), sep="\t")


if __name__ == "__main__":
    main()
