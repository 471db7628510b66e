"""Images per second of ResNet-50 at ImageNet's settings, against PyTorch's reference script.

    python -m benchmarks.imagenet --folder imagenette --batch 256

The folder has train/ and val/, as ImageNet has. The reference is the loop of PyTorch's examples
(`examples/imagenet/main.py`): torchvision's ImageFolder, crops and flips on the host by the
processes of a DataLoader, SGD; once as published, in float32, and once with bf16 autocast and
channels-last memory. Ours is `atomsep train imagenet`, plain and with atom modeling, as it is and
compiled. Each trains a few epochs; counted is the last that only trains, when all caches are warm.
They run one after the other on the same files, and with `--turns` so often in this order.
`--contenders` leaves others out. Adds its rows to `results/imagenet.csv`, each as it is measured.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from pathlib import Path

import torch
import torchvision
from torch import nn
from torch.utils.data import DataLoader
from torchvision import transforms

from atomsep.cli.main import main as atomsep
from benchmarks import record

REFERENCE, MIXED = "reference, float32", "reference, bf16 channels-last"


def train_reference(folder: Path, given: argparse.Namespace, mixed: bool) -> float:
    """Images per second of the reference loop in its last epoch."""
    device = torch.device(given.device)
    data = torchvision.datasets.ImageFolder(
        folder / "train",
        transforms.Compose(
            [
                transforms.RandomResizedCrop(given.image),
                transforms.RandomHorizontalFlip(),
                transforms.ToTensor(),
                transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
            ]
        ),
    )
    loader = DataLoader(
        data,
        given.batch,
        shuffle=True,
        num_workers=given.workers,
        pin_memory=device.type == "cuda",
        persistent_workers=given.workers > 0,
    )
    model = torchvision.models.resnet50(num_classes=len(data.classes)).to(device)
    if mixed:
        model = model.to(memory_format=torch.channels_last)
    optimiser = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=1e-4)
    criterion = nn.CrossEntropyLoss()
    rate = 0.0
    for _ in range(given.epochs):
        start = time.perf_counter()
        for images, labels in loader:
            images, labels = (x.to(device, non_blocking=True) for x in (images, labels))
            if mixed:
                images = images.contiguous(memory_format=torch.channels_last)
            with torch.autocast(device.type, torch.bfloat16, enabled=mixed):
                loss = criterion(model(images), labels)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        loss.item()
        rate = len(data) / (time.perf_counter() - start)
    return rate


def train_ours(folder: Path, given: argparse.Namespace, method: str, settings: list[str]) -> float:
    """Images per second of `atomsep train imagenet` in its last epoch."""
    count = sum(len(files) for _, _, files in os.walk(folder / "train"))
    settings = [
        *(f"folder={folder}", f"epochs={given.epochs}", f"batch={given.batch}", "evaluate_every=0"),
        *(f"image={given.image}", *settings),
    ]
    with tempfile.TemporaryDirectory() as out:
        try:
            atomsep(
                [
                    *("train", "imagenet", "--method", method, "--device", given.device),
                    *("--data", str(given.cache), "--out", out),
                    *("--data-on", given.data_on, "--workers", str(given.workers)),
                    *(word for each in settings for word in ("--set", each)),
                ]
            )
        except SystemExit as end:
            if end.code:
                raise
        [file] = Path(out).rglob("metrics.jsonl")
        ends = [json.loads(line)["seconds"] for line in file.read_text().splitlines()]
    # The last line also has the evaluation; the one before it is as warm.
    return count / (ends[-2] - ends[-3])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--folder", type=Path, required=True, help="holds train/ and val/")
    parser.add_argument("--cache", type=Path, default=Path("data"), help="for decoded images")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--image", type=int, default=224)
    parser.add_argument("--epochs", type=int, default=4, help="at least 4")
    parser.add_argument("--workers", type=int, default=max(1, (os.cpu_count() or 1) - 1))
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--data-on", default="auto", help="as for atomsep train")
    parser.add_argument("--turns", type=int, default=1)
    parser.add_argument(
        "--contenders", nargs="+", metavar="NAME", help="only these, and the reference in float32"
    )
    parser.add_argument("--dry", action="store_true", help="record nothing")
    given = parser.parse_args()
    if given.epochs < 4:
        parser.error("--epochs must be at least 4: the first warm up, and the last is evaluated")
    folder, bf16 = given.folder.resolve(), "precision=bf16-mixed"
    contenders = {
        REFERENCE: lambda: train_reference(folder, given, mixed=False),
        MIXED: lambda: train_reference(folder, given, mixed=True),
        "plain, bf16": lambda: train_ours(folder, given, "plain", [bf16]),
        "atom, bf16": lambda: train_ours(folder, given, "atom", [bf16]),
        "plain, bf16 compiled": lambda: train_ours(folder, given, "plain", [bf16, "compile=true"]),
        "atom, bf16 compiled": lambda: train_ours(folder, given, "atom", [bf16, "compile=true"]),
    }
    for name in given.contenders or ():
        if name not in contenders:
            parser.error(f"there is no contender {name!r}; choose from {', '.join(contenders)}")
    asked = [n for n in contenders if n == REFERENCE or n in (given.contenders or contenders)]
    for turn in range(1, given.turns + 1):
        reference = 0.0
        for name in asked:
            rate = contenders[name]()
            reference = reference or rate
            row = {
                "images": folder.name,
                "pixels": given.image,
                "batch": given.batch,
                "processes": given.workers,
                "turn": turn,
                "contender": name,
                "images_per_second": round(rate, 1),
                "against_reference_float32": round(rate / reference, 2),
            }
            print(row, flush=True)
            if not given.dry:
                record.append("imagenet", [row])


if __name__ == "__main__":
    main()
