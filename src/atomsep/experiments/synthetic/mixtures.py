r"""The paper's Gaussian mixtures: the smallest task on which atom modeling has an effect.

A sample has five sub-units. A coin flip decides from which of two normal distributions each is
drawn,

$$x_i \sim \mathcal N(+1, \tfrac12) \text{ in class A}, \qquad
  x_i \sim \mathcal N(-1, \tfrac12) \text{ in class B},$$

and the sample's label is the class that most of its sub-units were drawn from. The two overlap,
so no classifier is always right: see `bayes_rate`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

MEAN = 1.0
DEVIATION = 0.5
SUB_UNITS = 5
FEATURES = 8
ACTIVATIONS: dict[str, type[nn.Module]] = {"sigmoid": nn.Sigmoid, "relu": nn.ReLU}


@dataclass(frozen=True, eq=False)
class Samples:
    """Samples of the task.

    Attributes:
        values: the sub-units, `(n, 5)`.
        members: True where a sub-unit was drawn from A, `(n, 5)`.
        labels: 1 where most sub-units were drawn from A, `(n,)`.
    """

    values: Tensor
    members: Tensor
    labels: Tensor


def draw(count: int, generator: torch.Generator) -> Samples:
    """Draw samples.

    Example:
        >>> samples = draw(3, torch.Generator().manual_seed(0))
        >>> samples.members.int()
        tensor([[1, 0, 1, 1, 1],
                [0, 1, 0, 1, 0],
                [1, 1, 1, 1, 1]], dtype=torch.int32)
        >>> samples.labels
        tensor([1, 0, 1])
    """
    members = torch.rand(count, SUB_UNITS, generator=generator) < 0.5
    noise = torch.randn(count, SUB_UNITS, generator=generator)
    values = torch.where(members, MEAN, -MEAN) + DEVIATION * noise
    return Samples(values, members, (members.sum(1) > SUB_UNITS / 2).long())


def majority_posterior(values: Tensor) -> Tensor:
    """Probability that most sub-units were drawn from A, given their values: `(n, 5)` to `(n,)`.

    Sub-units are independent, so the number drawn from A has a Poisson binomial distribution,
    which is built up one sub-unit at a time.

    Example:
        >>> majority_posterior(torch.tensor([[1.0, 1.0, 0.0, -1.0, -1.0]])).round(decimals=3)
        tensor([0.5000])
    """
    of_a = torch.sigmoid(2 * MEAN * values / DEVIATION**2)
    number = torch.ones(len(values), 1, dtype=values.dtype)  # P(number of A's = column)
    for p in of_a.split(1, dim=1):
        stays, grows = number * (1 - p), number * p
        number = nn.functional.pad(stays, (0, 1)) + nn.functional.pad(grows, (1, 0))
    return number[:, SUB_UNITS // 2 + 1 :].sum(1)


def bayes_rate(count: int = 400_000, seed: int = 0) -> float:
    """Accuracy of the best possible classifier, by Monte Carlo (± 0.0001 with the default count).

    Example:
        >>> print(f"{bayes_rate():.3f}")
        0.960
    """
    values = draw(count, torch.Generator().manual_seed(seed)).values
    chance = majority_posterior(values)
    return torch.maximum(chance, 1 - chance).double().mean().item()


class MixtureClassifier(nn.Module):
    """Two linear layers, as in the paper: one shared by the sub-units, one over all of them.

    Atom modeling attaches to `embed`, the hidden state before the sigmoid. After the sigmoid every
    score is positive, and no charge could be negative.

    Args:
        activation: "sigmoid" or "relu".
    """

    def __init__(self, activation: str = "sigmoid") -> None:
        super().__init__()
        self.embed = nn.Linear(1, FEATURES)
        self.activation = ACTIVATIONS[activation]()
        self.head = nn.Linear(SUB_UNITS * FEATURES, 2)

    def hidden(self, values: Tensor) -> Tensor:
        """Input of the second layer: `(n, 5)` to `(n, 40)`."""
        hidden: Tensor = self.activation(self.embed(values.unsqueeze(-1)))
        return hidden.flatten(1)

    def forward(self, values: Tensor) -> Tensor:
        """Logits of the classes B and A: `(n, 5)` to `(n, 2)`."""
        logits: Tensor = self.head(self.hidden(values))
        return logits
