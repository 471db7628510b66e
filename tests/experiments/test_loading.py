"""Order and augmentation: fixed by the seed, wherever a run starts and whoever loads."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from atomsep.experiments.errors import ExperimentError
from atomsep.experiments.loading import (
    Batch,
    DrawKey,
    LoaderFeed,
    Shard,
    TensorFeed,
    UnreadableSampleError,
    epoch_batches,
)
from atomsep.experiments.randomness import generator
from atomsep.experiments.samples import Samples


def read(broken: Sequence[int], index: int) -> float:
    if index in broken:
        raise OSError("image file is truncated")
    return float(index)


def numbers(count: int, broken: Sequence[int] = (), label: int | None = None) -> Samples:
    """Samples that are their own index; some cannot be read."""
    labels = [index % 2 if label is None else label for index in range(count)]
    names = [f"number-{index}.png" for index in range(count)]
    return Samples(list(range(count)), labels, ("even", "odd"), names, partial(read, broken))


def noisy(value: float, key: DrawKey) -> Tensor:
    return torch.tensor(value) + torch.rand((), generator=generator(*key))


def feed(samples: Samples, **options: Any) -> LoaderFeed:
    return LoaderFeed(samples, noisy, **{"batch": 4, "seed": 0, **options})


def inputs(batches: Any) -> list[list[float]]:
    return [batch.inputs.tolist() for batch in batches]


def test_an_epoch_holds_every_sample_once_in_an_order_of_its_own() -> None:
    first, second = (torch.cat(epoch_batches(10, 4, 0, epoch)) for epoch in (0, 1))
    assert sorted(first.tolist()) == sorted(second.tolist()) == list(range(10))
    assert first.tolist() != second.tolist()
    assert first.tolist() != torch.cat(epoch_batches(10, 4, 1, 0)).tolist()


def test_a_rest_of_one_sample_is_left_out() -> None:
    assert [len(part) for part in epoch_batches(9, 4, 0, 0)] == [4, 4]


def test_processes_share_every_batch() -> None:
    whole = epoch_batches(10, 4, 0, 0)
    parts = [epoch_batches(10, 4, 0, 0, Shard(rank, 2)) for rank in (0, 1)]
    for batch, first, second in zip(whole, *parts, strict=False):
        assert sorted(batch.tolist()) == sorted([*first.tolist(), *second.tolist()])
    assert [len(part) for part in parts[0]] == [2, 2], "two samples are too few for two processes"


@pytest.mark.parametrize("start", [0, 1, 2, 3])
def test_batches_can_start_anywhere_in_an_epoch(start: int) -> None:
    values = torch.arange(12.0)
    tensors = TensorFeed(values, values.long() % 2, batch=4, seed=0, second=_noise)
    loader = feed(numbers(12), views=2)
    for source in (tensors, loader):
        whole = list(source.batches(3, 0))
        rest = list(source.batches(3, start))
        assert source.steps == len(whole) == 3
        for a, b in zip(whole[start:], rest, strict=True):
            assert torch.equal(a.inputs, b.inputs)
            assert torch.equal(a.labels, b.labels)
            assert torch.equal(a.second, b.second)


def _noise(values: Tensor, generator: torch.Generator) -> Tensor:
    return values + torch.rand(values.shape, generator=generator)


def test_loading_processes_make_no_difference() -> None:
    alone = inputs(feed(numbers(12)).batches(1))
    assert inputs(feed(numbers(12), workers=2).batches(1)) == alone


def test_the_second_view_leaves_the_first_as_it_is() -> None:
    one, two = feed(numbers(8)), feed(numbers(8), views=2)
    for a, b in zip(one.batches(0), two.batches(0), strict=True):
        assert torch.equal(a.inputs, b.inputs)
        assert a.second is None
        assert not torch.equal(b.inputs, b.second)
        assert torch.equal(b.inputs.floor(), b.second.floor())


def test_a_sample_is_augmented_differently_in_every_epoch() -> None:
    source = feed(numbers(8), batch=8)
    by_epoch = [dict(zip(*_floors(next(iter(source.batches(e)))), strict=True)) for e in (0, 1)]
    assert all(by_epoch[0][index] != by_epoch[1][index] for index in range(8))


def _floors(batch: Batch) -> tuple[list[int], list[float]]:
    return [int(x) for x in batch.inputs.tolist()], batch.inputs.tolist()


def test_loading_leaves_the_global_generator_alone() -> None:
    before = torch.random.get_rng_state()
    list(feed(numbers(8), views=2).batches(0))
    assert torch.equal(before, torch.random.get_rng_state())


def test_evaluation_sees_every_sample_once_and_in_order() -> None:
    values = torch.cat([b.inputs for b in feed(numbers(9), shuffle=False).batches()])
    assert values.floor().tolist() == list(range(9))


def test_a_process_without_samples_evaluates_nothing() -> None:
    alone = feed(numbers(2), shuffle=False, shard=Shard(2, 3))
    assert alone.steps == 0
    assert list(alone.batches()) == []


@pytest.mark.parametrize("workers", [0, 1])
def test_a_sample_that_cannot_be_read_stops_with_its_name(workers: int) -> None:
    with pytest.raises(UnreadableSampleError) as error:
        list(feed(numbers(8, broken=[3]), workers=workers).batches(0))
    assert str(error.value) == (
        "number-3.png (image file is truncated) cannot be read; repair or remove it, or leave out "
        "such samples with --set unreadable=skip"
    )


def test_a_sample_that_cannot_be_read_can_be_left_out_and_is_named() -> None:
    batches = list(feed(numbers(8, broken=[3, 5]), skip_unreadable=True).batches(0))
    assert sum(len(batch.labels) for batch in batches) == 6
    names = sorted(name.split()[0] for batch in batches for name in batch.unreadable)
    assert names == ["number-3.png", "number-5.png"]


def test_a_whole_batch_that_cannot_be_read_is_an_error() -> None:
    with pytest.raises(UnreadableSampleError, match="no sample of a batch can be read"):
        list(feed(numbers(4, broken=range(4)), skip_unreadable=True).batches(0))


def test_a_label_out_of_range_is_named() -> None:
    with pytest.raises(ExperimentError, match="label 2, but there are 2 classes"):
        list(feed(numbers(4, label=2)).batches(0))
