"""What the full runs take, from counted operations and measured rates: `python -m benchmarks.plan`.

It counts the floating-point operations of training on one image (a multiplication and an addition
are two) without computing anything, so it needs no GPU. ResNet-50's measured step on an H200, in
`results/gpu_steps.csv`, says how many of them per second such a step achieves. StyleSwin's step at
256 pixels was not measured; its times are those at ResNet-50's rate and at a quarter of it.
"""

from __future__ import annotations

import csv
from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any
from unittest.mock import patch

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode
from torchvision.models import resnet50

from atomsep.experiments.gan.experiments import FacesSettings
from atomsep.experiments.gan.styleswin.build import make_networks
from atomsep.experiments.images.experiments import IMAGENET
from benchmarks import record

FACES, IMAGES, HELD_OUT = 30_000, 1_281_167, 50_000
"""Images of CelebA-HQ, and of ImageNet-1K for training and evaluation."""

MEASURED, CONTENDER, BATCH = "ResNet-50 step, batch 256, bf16, channels-last", "without", 256
"""The row of `gpu_steps.csv`, and the images per step."""

SLOWER = 4
"""StyleSwin's step is taken to be at most so many times slower per operation than ResNet-50's."""


@dataclass(frozen=True)
class Operations:
    """GFLOP per image of StyleSwin.

    Attributes:
        generator: a forward pass.
        discriminator: a forward pass.
        step: a training step without R1.
        penalty: R1 in its turn.
    """

    generator: float
    discriminator: float
    step: float
    penalty: float


def count(work: Callable[[], Any]) -> float:
    """GFLOP of some work, backward passes included."""
    with FlopCounterMode(display=False) as counter:
        work()
    return counter.get_total_flops() / 1e9


def count_styleswin(settings: FacesSettings) -> Operations:
    """Count networks and training step on one image."""
    with patch("torch.nn.init.trunc_normal_", lambda weight, std: weight):  # it reads its draws
        generator, discriminator = make_networks(settings)
    noise = torch.empty(1, settings.z, 1, 1)
    images = torch.empty(1, 3, settings.size, settings.size)

    def step() -> None:
        for _ in range(4 if settings.consistency else 2):  # real and fake, and their changed copies
            discriminator(images).sum().backward()
        discriminator.requires_grad_(False)
        discriminator(generator(noise)).sum().backward()
        discriminator.requires_grad_(True)

    def penalty() -> None:
        _, gradient = discriminator.with_gradient(images)
        gradient.square().sum().backward()

    return Operations(
        count(lambda: generator(noise)),
        count(lambda: discriminator(images)),
        count(step),
        count(penalty),
    )


def count_resnet() -> float:
    """GFLOP of training ResNet-50 on one image of 224 pixels."""
    model, images = resnet50(), torch.empty(2, 3, 224, 224)
    return count(lambda: model(images).sum().backward()) / 2


def measured_step() -> float:
    """Seconds of ResNet-50's step, by the newest row."""
    with open(record.FOLDER / "gpu_steps.csv", newline="") as file:
        rows = [
            row
            for row in csv.DictReader(file)
            if row["case"].startswith(MEASURED) and row["contender"] == CONTENDER
        ]
    return float(rows[-1]["ms"]) / 1e3


LATENT, KERNELS = (256, 256, 56, 56), "atomsep, kernels"
"""The latent of ResNet-50 in `gpu_loss.csv`, and the row of the loss."""


def loss_ms(tokens: int, features: int, batch: int) -> float:
    """Device time of the loss and its gradient in bf16, by bytes, from the newest measured row."""
    with open(record.FOLDER / "gpu_loss.csv", newline="") as file:
        rows = [
            row
            for row in csv.DictReader(file)
            if row["contender"] == KERNELS
            and row["case"] == "ResNet-50 256 x 256 x 56 x 56 bf16, channels-last"
        ]
    return float(rows[-1]["device_ms"]) * batch * tokens * features / prod(LATENT)


def steps_of(images: int, batch: int) -> int:
    """Steps of a pass, the last of which may be smaller."""
    return -(-images // batch)


def main() -> None:
    """Print the numbers of the documentation."""
    settings, seconds = FacesSettings(), measured_step()
    with FakeTensorMode():  # nothing is computed, only counted
        found, resnet = count_styleswin(settings), count_resnet()
    rate = BATCH * resnet / seconds / 1e3
    print(f"ResNet-50: {resnet:.1f} GFLOP per image, {rate:.0f} TFLOP/s in the measured step")
    evaluated = IMAGENET.settings.epochs * HELD_OUT
    hours = IMAGENET.settings.epochs * IMAGES / BATCH * seconds / 3600
    minutes = evaluated * resnet / 3 / rate / 1e3 / 60
    print(f"ImageNet: {hours:.1f} h of steps, {minutes:.0f} min for {evaluated:,} evaluated images")
    print(
        f"StyleSwin: generator {found.generator:.0f} GFLOP forward, "
        f"discriminator {found.discriminator:.0f}"
    )
    per_image = found.step + found.penalty / settings.r1_every
    tera = settings.batch * per_image / 1e3
    print(f"a step: {per_image:,.0f} GFLOP per image, {tera:.1f} TFLOP in batches of 32")
    per_pass = steps_of(FACES, settings.batch)
    steps = settings.epochs * per_pass
    evaluations = settings.evaluation_points(per_pass)
    print(f"CelebA-HQ: {steps:,} steps, {len(evaluations)} evaluations, from step {evaluations[0]}")
    tokens = (settings.size // 2) ** 2
    loss = loss_ms(tokens, settings.hidden, settings.batch)
    share = loss * rate / tera / 10  # of the fastest step below
    print(f"atom modeling: {loss:.2f} ms per step at {tokens:,} tokens, about {share:.1f} % of it")
    generated = 2 * settings.samples * len(evaluations)
    for share in (1, 1 / SLOWER):
        each = tera / (rate * share)
        more = generated * found.generator / 1e3 / (rate * share) / 3600
        print(
            f"at {rate * share:.0f} TFLOP/s: {1e3 * each:,.0f} ms per step, "
            f"{steps * each / 3600:.0f} h, and {more:.1f} h to generate {generated:,} samples"
        )


if __name__ == "__main__":
    main()
