"""What the charges of a layer are like before and after training, and which sign they take.

    python -m benchmarks.charges                 # untrained against trained, on digits
    python -m benchmarks.charges --signs demo    # the sign in the mixtures of `make demo`

The first trains small classifiers on scikit-learn's digits, without the loss, with two weights, and
without the energy, and reads `stats` on held-out images before and after. It adds its rows to
`results/charges.csv` and prints the table of docs/importance.md: the smallest and largest
`charge_square` over the seeds. The second counts the runs in a folder whose charge rises with the
value of a sub-unit: positive where class A lies, negative where B lies.
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path

import numpy
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

import atomsep
from atomsep.experiments.atoms_file import read_atoms
from benchmarks import record

SEEDS, STEPS, BATCH = 6, 600, 64
TRAINED = {
    "0.0": (0.0, 1.0),
    "0.1": (0.1, 1.0),
    "1.0": (1.0, 1.0),
    "1.0 without energy": (1.0, 0.0),
}
"""Weights of the loss, and of the energy in it."""
SHOWN = ("charge_square", "occupancy", "position_share")


class Words(nn.Sequential):
    """The 8 x 8 pixels as 16 words of 2 x 2, `(M, 16, 4)`."""

    def forward(self, images: Tensor) -> Tensor:
        """Logits."""
        patches = nn.functional.unfold(images, 2, stride=2)
        return super().forward(patches.mT)  # type: ignore[no-any-return]


def convolutions() -> nn.Module:
    """Two convolutions with batch norm."""
    first = (nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU())
    second = (nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU())
    return nn.Sequential(*first, *second, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10))


def transformer() -> nn.Module:
    """Two encoder layers, which end in layer norms."""
    layers = (nn.TransformerEncoderLayer(32, 4, 64, 0.0, batch_first=True) for _ in range(2))
    return Words(nn.Linear(4, 32), *layers, nn.Flatten(), nn.Linear(512, 10))


LAYERS = {"batch norm": (convolutions, "1"), "layer norm": (transformer, "1"),
          "convolution": (convolutions, "0"), "linear": (transformer, "0")}  # fmt: skip


def train(model: nn.Module, layer: str, name: str, data: tuple[Tensor, Tensor]) -> None:
    """Train with the loss at a layer; without it if the weight is 0."""
    weight, energy = TRAINED[name]
    criterion = atomsep.AtomLoss(energy=energy)
    attachment = atomsep.attach(model, layer, criterion, weight=weight) if weight else None
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for _ in range(STEPS):
        chosen = torch.randint(len(data[0]), (BATCH,))
        loss = nn.functional.cross_entropy(model(data[0][chosen]), data[1][chosen])
        optimizer.zero_grad()
        (loss if attachment is None else loss + attachment.loss()).backward()
        optimizer.step()
    if attachment is not None:
        attachment.detach()


def look(model: nn.Module, layer: str, images: Tensor) -> dict[str, float]:
    """What the charges of a layer are like, with the statistics of the batch in batch norms."""
    with atomsep.attach(model, layer) as attachment, torch.no_grad():
        model.train()(images)
        return {name: attachment.stats[name] for name in SHOWN}


def compare() -> None:
    """Untrained against trained, all layers, weights and seeds."""
    images, labels = (torch.from_numpy(a) for a in load_digits(return_X_y=True))
    images = images.float().view(-1, 1, 8, 8) / 16
    held_out, data = images[1400:], (images[:1400], labels[:1400])
    rows: list[dict[str, object]] = []
    for kind, (build, layer) in LAYERS.items():
        for name in ("untrained", *TRAINED):
            for seed in range(SEEDS):
                torch.manual_seed(seed)
                model = build()
                if name in TRAINED:
                    train(model, layer, name, data)
                found = look(model, layer, held_out)
                rows.append({"layer": kind, "weight": name, "seed": seed, **found})
        print(f"{kind}: done", flush=True)
    path = record.append("charges", rows)
    print(f"added {len(rows)} rows to {path}\n{render(path)}")


def render(path: Path) -> str:
    """The smallest and largest `charge_square` of each layer and weight, as a table in Markdown."""
    values: dict[str, dict[str, list[float]]] = {}
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            of_layer = values.setdefault(row["layer"], {})
            of_layer.setdefault(row["weight"], []).append(float(row["charge_square"]))
    lines = ["| layer | untrained | task alone | weight 0.1 | weight 1 | weight 1, no energy |"]
    lines.append("|---|---|---|---|---|---|")
    for kind, of_layer in values.items():
        cells = (f"{min(v):.2f} to {max(v):.2f}" for v in of_layer.values())
        lines.append(f"| {kind} | {' | '.join(cells)} |")
    return "\n".join(lines)


def count_signs(folder: Path) -> None:
    """Print how many runs give the positive charge to which class."""
    slopes = []
    for path in sorted(folder.rglob("atom-????????/seed-*/atoms.npz")):  # not the ablations
        atoms = read_atoms(path.parent)
        assert atoms is not None
        charges = numpy.asarray(atoms.charges, dtype=float).ravel()
        slopes.append(numpy.corrcoef(numpy.ravel(atoms.values), charges)[0, 1])
        print(f"{path.parent}: correlation of value and charge {slopes[-1]:.2f}")
    up = sum(slope > 0 for slope in slopes)
    print(f"positive charge on class A in {up} of {len(slopes)} runs, on B in {len(slopes) - up}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--signs", type=Path, help="a folder with runs of the mixtures")
    options = parser.parse_args()
    torch.set_num_threads(1)
    compare() if options.signs is None else count_signs(options.signs)
