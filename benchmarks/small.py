"""What a training step of a small model costs on a CPU, with and without the loss.

    python -m benchmarks.small

Small models show the fixed cost of an attachment: Python, hooks and the smallest operations.
Whole steps (forward, backward, optimizer) on 2 threads, taking turns in one run; the third
contender is the plain step again and shows the noise. Adds its rows to `results/small.csv`.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

import atomsep
from benchmarks import record

BATCH, CLASSES = 32, 10


def tiny_cnn() -> nn.Module:
    """Two convolutions on 28 x 28 pixels; the loss goes to the first batch norm."""
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(16, CLASSES),
    )


class TinyTransformer(nn.Module):
    """Two encoder layers of 64 features over 32 tokens; the loss goes to the first."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(100, 64)
        layers = [nn.TransformerEncoderLayer(64, 4, 128, batch_first=True) for _ in range(2)]
        self.layers = nn.ModuleList(layers)
        self.head = nn.Linear(64, CLASSES)

    def forward(self, words: Tensor) -> Tensor:
        """Logits, `(M, CLASSES)`."""
        tokens = self.embedding(words)
        for layer in self.layers:
            tokens = layer(tokens)
        logits: Tensor = self.head(tokens.mean(1))
        return logits


CASES: dict[str, tuple[Callable[[], nn.Module], str, Callable[[], Tensor]]] = {
    "tiny CNN": (tiny_cnn, "1", lambda: torch.randn(BATCH, 1, 28, 28)),
    "tiny transformer": (TinyTransformer, "layers.0", lambda: torch.randint(100, (BATCH, 32))),
}


def make_step(
    build: Callable[[], nn.Module], target: str | None, inputs: Tensor
) -> Callable[[], None]:
    """A training step; with a target, atom modeling is attached to that layer."""
    torch.manual_seed(0)
    model = build()
    labels = torch.randint(CLASSES, (BATCH,))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    attachment = None if target is None else atomsep.attach(model, target, weight=0.1)

    def step() -> None:
        loss = nn.functional.cross_entropy(model(inputs), labels)
        if attachment is not None:
            loss = loss + attachment.loss()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


def compare(case: str) -> dict[str, object]:
    """One row: milliseconds per step, and what the loss adds."""
    build, target, make_inputs = CASES[case]
    inputs = make_inputs()
    taken = record.interleaved_ms(
        {
            "without": make_step(build, None, inputs),
            "again": make_step(build, None, inputs),
            "with": make_step(build, target, inputs),
        },
        repeats=500,
    )
    row: dict[str, object] = {
        "case": case,
        "without_ms": round(taken["without"], 3),
        "without_again_ms": round(taken["again"], 3),
        "with_ms": round(taken["with"], 3),
        "ratio": round(taken["with"] / taken["without"], 3),
    }
    print("  ".join(f"{name} {value}" for name, value in row.items()), flush=True)
    return row


if __name__ == "__main__":
    torch.set_num_threads(2)
    torch.manual_seed(0)
    print(f"{record.machine()}, torch {torch.__version__}")
    record.append("small", [compare(case) for case in CASES])
