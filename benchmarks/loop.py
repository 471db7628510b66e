"""What the experiments' training loop costs over a bare PyTorch loop: `python -m benchmarks.loop`.

Same model, same batches, same optimiser, taking turns in one run. The loop under test is the whole
of it: seeding, Fabric, schedules, the means of the losses, the looks at the clock. Checkpoints are
left out: their cost is their number, at most one in `--checkpoint-seconds`.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import torch
import torchvision
from torch import nn

from atomsep.experiments.board import Board
from atomsep.experiments.classification import Classification
from atomsep.experiments.loading import TensorFeed
from atomsep.experiments.loop import Loop
from atomsep.experiments.machine import Machine, make_fabric
from atomsep.experiments.progress import Listener, interruptible
from atomsep.experiments.runs import Run, RunKey
from atomsep.experiments.settings import Settings
from atomsep.experiments.task import Context
from benchmarks import record

CLASSES = 10


def compare(name: str, images: int, size: int, batch: int, repeats: int) -> dict[str, object]:
    machine = Machine(checkpoint_seconds=1e9, tensorboard=False)
    fabric = make_fabric(machine, "32-true")
    data = torch.randn(images, 3, size, size)
    labels = torch.randint(CLASSES, (images,))
    settings = Settings(epochs=10**6, batch=batch, learning_rate=0.01, weight=0.0)

    def build() -> tuple[nn.Module, torch.optim.Optimizer]:
        torch.manual_seed(0)
        model = getattr(torchvision.models, name)(num_classes=CLASSES)
        return model, torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    feed = TensorFeed(data, labels, batch=batch, seed=0)
    bare, optimiser = build()
    bare.to(fabric.device)

    def bare_epoch() -> None:
        bare.train()
        for each in feed.batches(0, 0):
            inputs, targets = each.inputs.to(fabric.device), each.labels.to(fabric.device)
            loss = nn.functional.cross_entropy(bare(inputs), targets)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        loss.item()

    context = Context(settings, "plain", 0, fabric, Path())
    task = Classification(context, *build(), feed, lambda: iter(()), dict)
    with tempfile.TemporaryDirectory() as folder, interruptible() as stop:
        key = RunKey("benchmark", "plain", 0, settings)
        loop = Loop(task, key, Run(Path(folder)), fabric, machine, Listener(), {})
        loop.saved = 1e18
        # What `run_to_end` would set; nothing is evaluated or recorded on the way.
        loop.total, loop.evaluations = settings.epochs * feed.steps, set()
        loop.moments, loop.line_ends = {}, set()

        def whole_epoch() -> None:
            loop.step = 0
            loop._train_epoch(0.0, stop, Board())

        taken = record.interleaved_ms({"bare": bare_epoch, "loop": whole_epoch}, repeats)
    steps = feed.steps
    row: dict[str, object] = {
        "model": name,
        "input": f"{batch}x3x{size}x{size}",
        "bare_ms_a_step": round(taken["bare"] / steps, 4),
        "loop_ms_a_step": round(taken["loop"] / steps, 4),
        "overhead": round(taken["loop"] / taken["bare"] - 1, 4),
    }
    print("  ".join(f"{k} {v}" for k, v in row.items()), flush=True)
    return row


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=15)
    options = parser.parse_args()
    gpu = torch.cuda.is_available()
    cases = [("resnet18", 2048, 96, 64), ("resnet50", 1024, 224, 64)] if gpu else [
        ("resnet18", 256, 64, 32)
    ]  # fmt: skip
    print(f"{record.machine()}, torch {torch.__version__}")
    record.append("loop", [compare(*case, options.repeats) for case in cases])
