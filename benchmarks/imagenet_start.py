"""The first steps of `imagenet`'s recipe on Imagenette, by seed: why plain seeds differ so much.

    python -m benchmarks.imagenet_start --folder imagenette

ResNet-50 at 64 pixels, batches of 256, SGD at 0.1, as the experiment trains it; with a learning
rate that rises over two thirds of the steps (`warm-up`), with the last norm of every block
starting at 0 (`zero-init`), and with both. Printed are the mean and the largest loss of every ten
steps, and the accuracy on 1,000 held-out images after the last. A loss of log(10) = 2.30 is chance.
Adds its rows to `results/imagenet_start.csv`. A step takes two seconds of one core.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor, nn
from torchvision import transforms
from torchvision.models import resnet50

from benchmarks import record

VARIANTS = ("as it is", "warm-up", "zero-init", "warm-up and zero-init")
NORMALISED = [
    transforms.ToTensor(),
    transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
]

Items = list[tuple[Path, int]]


def find(folder: Path) -> Items:
    """The images with their classes."""
    classes = sorted(path for path in folder.iterdir() if path.is_dir())
    return [(file, label) for label, path in enumerate(classes) for file in sorted(path.iterdir())]


def load(items: Items, transform: transforms.Compose) -> tuple[Tensor, Tensor]:
    """A batch of images and their labels."""
    images = torch.stack([transform(Image.open(file).convert("RGB")) for file, _ in items])
    labels = torch.tensor([label for _, label in items])
    return images.contiguous(memory_format=torch.channels_last), labels


def train(variant: str, seed: int, given: argparse.Namespace) -> dict[str, object]:
    """The losses of the first steps, summed up."""
    training, held_out = (find(given.folder / part) for part in ("train", "val"))
    crops = transforms.Compose(
        [
            transforms.RandomResizedCrop(given.image),
            transforms.RandomHorizontalFlip(),
            *NORMALISED,
        ]
    )
    torch.manual_seed(seed)
    model = resnet50(num_classes=10).to(memory_format=torch.channels_last)
    if "zero-init" in variant:
        for name, norm in model.named_modules():
            if name.endswith("bn3"):
                nn.init.zeros_(norm.weight)
    optimiser = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=1e-4)
    generator = torch.Generator().manual_seed(1000 + seed)
    torch.manual_seed(seed)
    losses: list[float] = []
    order: list[int] = []
    for step in range(given.steps):
        if len(order) < given.batch:
            order = torch.randperm(len(training), generator=generator).tolist()
        chosen, order = order[: given.batch], order[given.batch :]
        images, labels = load([training[index] for index in chosen], crops)
        done = (step + 1) / (0.67 * given.steps)
        optimiser.param_groups[0]["lr"] = 0.1 * (min(1, done) if "warm-up" in variant else 1)
        optimiser.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            output = model(images)
        loss = nn.functional.cross_entropy(output.float(), labels)
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
        if step % 10 == 9:
            mean, largest = statistics.mean(losses[-10:]), max(losses[-10:])
            print(f"{variant}, seed {seed}, step {step + 1}: {mean:.3f}, at most {largest:.2f}")
    return {
        "variant": variant,
        "seed": seed,
        "steps": given.steps,
        "largest_loss": round(max(losses), 2),
        "last_ten": round(statistics.mean(losses[-10:]), 3),
        "top1": accuracy(model, held_out, given.image),
    }


@torch.no_grad()
def accuracy(model: nn.Module, items: Items, image: int) -> float:
    """In %, of 1,000 images."""
    central = transforms.Compose(
        [transforms.Resize(image * 8 // 7), transforms.CenterCrop(image), *NORMALISED]
    )
    order = torch.randperm(len(items), generator=torch.Generator().manual_seed(0))[:1000].tolist()
    model.eval()
    right = 0
    for part in torch.tensor(order).split(250):
        images, labels = load([items[index] for index in part.tolist()], central)
        with torch.autocast("cpu", torch.bfloat16):
            right += int((model(images).argmax(1) == labels).sum())
    return round(100 * right / len(order), 1)


def main() -> None:
    """Train all variants, print and record."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--folder", type=Path, required=True, help="holds train/ and val/")
    parser.add_argument("--steps", type=int, default=74, help="37 are an epoch")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--image", type=int, default=64)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--variants", nargs="+", default=VARIANTS, choices=VARIANTS)
    parser.add_argument("--dry", action="store_true", help="record nothing")
    given = parser.parse_args()
    torch.set_num_threads(1)  # with several, sums would depend on their number
    for seed in given.seeds:
        for variant in given.variants:
            row = train(variant, seed, given)
            print(row, flush=True)
            if not given.dry:
                record.append("imagenet_start", [row])


if __name__ == "__main__":
    main()
