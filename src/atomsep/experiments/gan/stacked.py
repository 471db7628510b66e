"""Stacked MNIST: three digits as the colours of one image, and how many of the stacks appear.

The 1,000 triples of digits are modes that are equally frequent, up to the frequencies of MNIST's
digits. A classifier of single digits reads each colour of a generated image, and tells its mode.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from atomsep.experiments.errors import ExperimentError
from atomsep.experiments.gan.classifier import Classifier
from atomsep.experiments.gan.pictures import Pictures
from atomsep.experiments.randomness import generator

COLOURS = 3
MODES = 10**COLOURS

SURE = 0.99
"""Share of held-out digits that the classifier must read correctly."""

BATCH = 1024


@dataclass(frozen=True)
class Stacks:
    """Stacks of digits, made when a batch is asked for.

    Attributes:
        digits: `(n, 1, 64, 64)`, bytes.
        members: the three digits of each stack, `(N, 3)`.
    """

    digits: Tensor
    members: Tensor
    unreadable: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.members)

    @property
    def nbytes(self) -> int:
        """Bytes of digits and stacks."""
        return self.digits.nbytes + self.members.nbytes

    def to(self, device: torch.device) -> Stacks:
        """The digits and the stacks on a device."""
        return replace(self, digits=self.digits.to(device), members=self.members.to(device))

    def batch(self, indices: Tensor) -> Tensor:
        """Some of the stacks, `(M, 3, 64, 64)`."""
        return self.digits[self.members[indices]].squeeze(2)


def stack(digits: Tensor, count: int) -> Stacks:
    """Stacks of digits that are drawn at random, the same in every run.

    Example:
        >>> stacks = stack(torch.zeros(10, 1, 64, 64), count=4)
        >>> len(stacks), stacks.batch(torch.tensor([0, 2])).shape
        (4, torch.Size([2, 3, 64, 64]))
    """
    draws = generator(0, "stacks")
    return Stacks(digits, torch.randint(len(digits), (count, COLOURS), generator=draws))


class Modes:
    """Counts the modes of generated stacks.

    Args:
        reader: a classifier of single digits.
        held_out: digits that it was not trained on.
        device: device to count on.
        sure: refuse a classifier that cannot read.

    Raises:
        ExperimentError: the classifier reads too few of the held-out digits correctly.
    """

    metric = "modes"
    higher_is_better = True
    floor = 0.01 * MODES

    def __init__(
        self, reader: Classifier, held_out: Pictures, device: torch.device, *, sure: bool = True
    ) -> None:
        self.reader = reader.to(device).eval().requires_grad_(False)
        self.device = device
        labels = held_out.labels
        assert labels is not None  # a classifier is trained with labels
        right = self.read(held_out.images).cpu() == labels
        self.accuracy = float(right.double().mean())
        if sure and self.accuracy <= SURE:
            raise ExperimentError(
                f"the classifier of single digits reads only {self.accuracy:.2%} of held-out "
                f"digits correctly, and modes cannot be counted with less than {SURE:.0%}; check "
                f"that the data is MNIST"
            )

    def compare(self, generated: Tensor) -> dict[str, float]:
        """Metrics of generated images, bytes `(N, 3, H, W)`.

        Returns:
            The number of modes, `reverse_kl` of their frequencies, and the accuracy of the
            classifier on held-out digits.
        """
        digits = self.read(generated.flatten(0, 1).unsqueeze(1)).view(-1, COLOURS)
        places = torch.tensor([100, 10, 1], device=self.device)
        counts = torch.bincount((digits * places).sum(1), minlength=MODES)
        return {
            "modes": float((counts > 0).sum()),
            "reverse_kl": reverse_kl(counts),
            "digit_accuracy": self.accuracy,
        }

    @torch.no_grad()
    def read(self, images: Tensor) -> Tensor:
        """The digits in images, bytes `(n, 1, H, W)`."""
        parts = (part.to(self.device).expand(-1, 3, -1, -1) for part in images.split(BATCH))
        return torch.cat([self.reader.head(self.reader(part)).argmax(1) for part in parts])


def reverse_kl(counts: Tensor) -> float:
    r"""Divergence of the generated modes from equal frequencies, $\sum p \log(K p)$, in nats.

    It is 0 if all K modes are equally frequent, and log K if there is only one.

    Example:
        >>> reverse_kl(torch.tensor([5, 5, 0, 0])) == math.log(2)
        True
    """
    shares = counts.double() / counts.sum()
    return math.log(len(counts)) - float(torch.special.entr(shares).sum())
