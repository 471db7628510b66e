"""Token ids on the device: the batches are those of transformers' own collator, sorted or not."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from atomsep.experiments.loading import Shard, epoch_batches
from atomsep.experiments.machine import Machine, make_fabric
from atomsep.experiments.registry import find_experiment, run_key
from atomsep.experiments.task import Context
from atomsep.experiments.text import build
from atomsep.experiments.text.data import as_samples
from atomsep.experiments.text.feed import TokenFeed, Tokens, bucketed_batches, tokenise
from atomsep.experiments.text.tiny import agreement, tiny_encoder

CPU = torch.device("cpu")


def collated(tokenizer: Any, texts: list[str], length: int) -> dict[str, Tensor]:
    """A batch by the collator of transformers, from sentences tokenised one by one."""
    from transformers import DataCollatorWithPadding

    rows = [tokenizer(text, truncation=True, max_length=length) for text in texts]
    return dict(DataCollatorWithPadding(tokenizer)(rows))


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("bucketed", [False, True])
def test_batches_are_those_of_the_collator(bucketed: bool, side: str) -> None:
    texts, _ = agreement(53, 1)
    tokenizer, _ = tiny_encoder(texts.stored, 2)
    tokenizer.padding_side = side
    feed = TokenFeed(tokenise(texts, tokenizer, 6, CPU), batch=8, seed=3, bucketed=bucketed)
    seen = []
    for epoch in (0, 1):
        parts = feed._parts(epoch)
        batches = list(feed.batches(epoch, 0))
        assert len(batches) == feed.steps == 7
        for part, batch in zip(parts, batches, strict=True):
            chosen = part.tolist()
            expected = collated(tokenizer, [texts.stored[index] for index in chosen], 6)
            assert batch.inputs.keys() == expected.keys()
            for name, value in expected.items():
                assert batch.inputs[name].dtype == value.dtype
                assert torch.equal(batch.inputs[name], value), name
            assert batch.labels.tolist() == [texts.labels[index] for index in chosen]
            seen.append(chosen)
    first, second = seen[:7], seen[7:]
    for epoch in (first, second):
        assert sorted(index for part in epoch for index in part) == list(range(53))
    assert first != second


@pytest.mark.parametrize("side", ["right", "left"])
def test_lengths_that_are_multiples_only_add_padding(side: str) -> None:
    texts, _ = agreement(40, 1)
    tokenizer, _ = tiny_encoder(texts.stored, 2)
    tokenizer.padding_side = side
    exact = tokenise(texts, tokenizer, 30, CPU)
    rounded = dataclasses.replace(exact, multiple=3)
    lengths = {}
    for part in torch.arange(40).split(1):  # alone, so that every length comes
        narrow, wide = exact.batch(part).inputs, rounded.batch(part).inputs
        length = narrow["input_ids"].shape[1]
        lengths[length] = longer = wide["input_ids"].shape[1]
        kept = slice(length) if side == "right" else slice(longer - length, None)
        assert wide["attention_mask"].sum() == length
        for name, values in narrow.items():
            assert torch.equal(wide[name][:, kept], values)
    assert lengths == {5: 6, 8: 8}  # 8 is the longest of all, which is not exceeded


def test_unsorted_batches_are_those_of_every_other_feed() -> None:
    texts, _ = agreement(20, 1)
    tokenizer, _ = tiny_encoder(texts.stored, 2)
    feed = TokenFeed(tokenise(texts, tokenizer, 8, CPU), batch=8, seed=5)
    for found, expected in zip(feed._parts(2), epoch_batches(20, 8, 5, 2), strict=True):
        assert torch.equal(found, expected)


def test_an_epoch_may_start_anywhere() -> None:
    texts, _ = agreement(40, 1)
    tokenizer, _ = tiny_encoder(texts.stored, 2)
    feed = TokenFeed(tokenise(texts, tokenizer, 8, CPU), batch=8, seed=0, bucketed=True)
    whole, rest = list(feed.batches(4, 0)), list(feed.batches(4, 3))
    for late, early in zip(rest, whole[3:], strict=True):
        assert torch.equal(late.inputs["input_ids"], early.inputs["input_ids"])


def test_buckets_hold_neighbours_in_length_and_nothing_is_lost_or_doubled() -> None:
    lengths = torch.randint(3, 60, (999,), generator=torch.Generator().manual_seed(0))
    parts = bucketed_batches(lengths, 16, seed=0, epoch=0)
    assert sorted(torch.cat(parts).tolist()) == list(range(999))
    assert len(parts) == len(epoch_batches(999, 16, 0, 0))
    spread = [int(lengths[part].max() - lengths[part].min()) for part in parts]
    assert sum(spread) / len(spread) < 5  # 57 lengths over 50 batches of a window; random: 53
    order = [float(lengths[part].float().mean()) for part in parts]
    assert order != sorted(order)  # the batches themselves come in random order


def test_processes_share_every_batch() -> None:
    lengths = torch.arange(3, 37)
    whole = bucketed_batches(lengths, 8, seed=0, epoch=0, shard=Shard(0, 1))
    assert len(whole) == 5
    halves = [bucketed_batches(lengths, 8, 0, 0, Shard(rank, 2)) for rank in (0, 1)]
    for first, second in zip(*halves, strict=True):
        assert len(first) == len(second) == 4
        assert int(torch.cat([first, second]).unique().numel()) == 8


def test_sentences_that_are_left_over_are_not_the_longest() -> None:
    """One of 33 is left over in every epoch: each time another."""
    lengths = torch.arange(3, 36)
    left = set()
    for epoch in range(20):
        parts = bucketed_batches(lengths, 8, 0, epoch)
        assert len(parts) == len(epoch_batches(33, 8, 0, epoch)) == 4
        left |= set(range(33)) - set(torch.cat(parts).tolist())
    assert len(left) > 5


def test_held_out_sentences_come_once_shortest_first() -> None:
    texts = as_samples(["a b c", "a", "a b c d e f g h", "b"], [0, 1, 0, 1], ["x", "y"], "test")
    tokenizer, _ = tiny_encoder(texts.stored, 2)
    feed = TokenFeed(tokenise(texts, tokenizer, 6, CPU), batch=3, seed=0)
    first, last = feed.held_out()
    assert first.inputs["attention_mask"].tolist() == [[1, 1, 1, 0, 0], [1, 1, 1, 0, 0], [1] * 5]
    assert last.inputs["input_ids"].shape == (1, 6)  # cut
    assert torch.cat([first.labels, last.labels]).tolist() == [1, 1, 0, 0]


def test_a_process_may_have_no_held_out_sentence() -> None:
    texts, _ = agreement(2, 1)
    tokenizer, _ = tiny_encoder(texts.stored, 2)
    feed = TokenFeed(tokenise(texts, tokenizer, 6, CPU), batch=3, seed=0, shard=Shard(3, 4))
    assert list(feed.held_out()) == []


def test_sentences_that_would_fill_the_device_stay_on_the_host(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without a GPU here: the device is one that exists in name only."""
    texts, _ = agreement(8, 1)
    tokenizer, _ = tiny_encoder(texts.stored, 2)
    monkeypatch.setattr("atomsep.experiments.machine._free_memory", lambda device: 1000)
    tokens = tokenise(texts, tokenizer, 6, torch.device("cuda"))
    assert {values.device.type for values in tokens.arguments.values()} == {"cpu"}
    assert tokens.batch(torch.tensor([0, 1])).labels.device.type == "cpu"


def test_a_run_s_place_is_that_of_its_tokens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    places: list[str] = []

    def note(*given: Any) -> Tokens:
        places.append(given[-1])
        return tokenise(*given)

    monkeypatch.setattr(build, "tokenise", note)
    experiment = find_experiment("cola")
    settings = run_key(experiment, "plain", 0, (), tiny=True).settings
    fabric = make_fabric(Machine(device="cpu"), "32-true")
    experiment.build(Context(settings, "plain", 0, fabric, tmp_path, tiny=True, data_on="host"))
    assert places == ["host", "host"]  # training and held-out sentences
