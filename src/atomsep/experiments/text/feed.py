"""Sentences as token ids on the device, in batches of similar length."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from atomsep.experiments.loading import ALONE, Batch, Shard, epoch_batches
from atomsep.experiments.machine import move_if_it_fits
from atomsep.experiments.randomness import generator
from atomsep.experiments.samples import Samples
from atomsep.experiments.text.models import quiet

WINDOW = 50
"""Batches whose sentences are sorted by length together."""

GPU_MULTIPLE = 8
"""Lengths on a GPU are multiples of this: tensor cores want it, and each new length costs CUDA's
libraries tenths of a second."""


@dataclass(frozen=True)
class Tokens:
    """Sentences as a model's arguments, padded to the longest.

    Attributes:
        arguments: each `(n, N)`, whole numbers of 32 bits.
        labels: `(n,)`.
        lengths: tokens of each sentence, `(n,)`, on the host.
        left: whether the padding is on the left.
        multiple: lengths of batches are multiples of it, up to the longest of all.
    """

    arguments: Mapping[str, Tensor]
    labels: Tensor
    lengths: Tensor
    left: bool
    multiple: int = 1

    @property
    def nbytes(self) -> int:
        """Bytes of arguments and labels."""
        return sum(values.nbytes for values in (*self.arguments.values(), self.labels))

    def to(self, device: torch.device) -> Tokens:
        """Arguments and labels on a device."""
        arguments = {name: values.to(device) for name, values in self.arguments.items()}
        return replace(self, arguments=arguments, labels=self.labels.to(device))

    def batch(self, indices: Tensor) -> Batch:
        """Some of the sentences, padded to the longest of them, or to the next multiple."""
        longest = -(-int(self.lengths[indices].max()) // self.multiple) * self.multiple
        columns = slice(-longest, None) if self.left else slice(longest)
        rows = indices.to(self.labels.device, non_blocking=True)
        inputs = {name: values[rows, columns].long() for name, values in self.arguments.items()}
        return Batch(inputs, self.labels[rows])


def tokenise(
    texts: Samples, tokenizer: Any, length: int, device: torch.device, place: str = "auto"
) -> Tokens:
    """All sentences as tokens on a device, or on the host if they would fill the device.

    Args:
        texts: the sentences.
        tokenizer: the model's tokenizer.
        length: the largest number of tokens; longer sentences are cut.
        device: the device that trains.
        place: "auto", "device" or "host"; see `place_for`.

    Raises:
        ExperimentError: `place` is "device", and the tokens do not fit.
    """
    length = min(length, tokenizer.model_max_length)
    rows = tokenizer(texts.stored, truncation=True, max_length=length)
    lengths = torch.tensor([len(ids) for ids in rows["input_ids"]])
    with quiet():
        padded = tokenizer.pad(rows, return_tensors="pt")
    tokens = Tokens(
        {name: values.int() for name, values in padded.items()},
        torch.tensor(texts.labels),
        lengths,
        tokenizer.padding_side == "left",
        GPU_MULTIPLE if device.type == "cuda" else 1,
    )
    return move_if_it_fits(tokens.to, tokens.nbytes, place, device)[0]


class TokenFeed:
    """Batches of sentences.

    Args:
        tokens: the sentences.
        batch: sentences in a batch, over all processes.
        seed: seed of the run.
        shard: this process among all.
        bucketed: whether sentences of similar length share a batch.
    """

    def __init__(
        self,
        tokens: Tokens,
        *,
        batch: int,
        seed: int,
        shard: Shard = ALONE,
        bucketed: bool = False,
    ) -> None:
        self.tokens, self.batch, self.seed = tokens, batch, seed
        self.shard, self.bucketed = shard, bucketed
        self.steps = len(self._parts(0))

    def batches(self, epoch: int, start: int) -> Iterator[Batch]:
        """The batches of an epoch, starting with batch number `start`."""
        return map(self.tokens.batch, self._parts(epoch)[start:])

    def held_out(self) -> Iterator[Batch]:
        """Every sentence once, the shortest first."""
        order = self.tokens.lengths.argsort(stable=True)[self.shard.rank :: self.shard.world]
        return map(self.tokens.batch, order.split(self.batch) if len(order) else ())

    def _parts(self, epoch: int) -> list[Tensor]:
        lengths = self.tokens.lengths
        if self.bucketed:
            return bucketed_batches(lengths, self.batch, self.seed, epoch, self.shard)
        return epoch_batches(len(lengths), self.batch, self.seed, epoch, self.shard)


def bucketed_batches(
    lengths: Tensor, batch: int, seed: int, epoch: int, shard: Shard = ALONE
) -> list[Tensor]:
    """Indices of every batch of an epoch, with sentences of similar length together.

    The order of an epoch is cut into windows of 50 batches; each is sorted by length and cut into
    batches, which come in random order. There are as many batches as without sorting.

    Example:
        >>> lengths = torch.tensor([3, 9, 4, 8, 3, 9])
        >>> sorted(sorted(lengths[part].tolist()) for part in bucketed_batches(lengths, 2, 0, 0))
        [[3, 3], [4, 8], [9, 9]]
    """
    order = torch.randperm(len(lengths), generator=generator(seed, "order", epoch))
    rest = len(order) % batch
    if rest < 2 * shard.world:  # too few to share; left out before sorting, so not the longest
        order = order[: len(order) - rest]
    windows = order.split(WINDOW * batch)
    parts = [
        part
        for window in windows
        for part in window[lengths[window].argsort(stable=True)].split(batch)
    ]
    places = torch.randperm(len(parts), generator=generator(seed, "buckets", epoch)).tolist()
    return [parts[place][shard.rank :: shard.world] for place in places]
