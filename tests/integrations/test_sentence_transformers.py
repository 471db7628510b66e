"""Losses of sentence-transformers: the loss module, which returns the loss, is what is attached."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from by_hand import WEIGHT, assert_same, bert, gradients, plain_loss
from datasets import Dataset
from sentence_transformers import (
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
    losses,
)
from sentence_transformers.models import Pooling
from tiny_texts import arguments
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import BatchSampler, SequentialSampler
from transformers import BertModel

import atomsep

LAYER = "model.0.words.encoder.layer.0"
Features = dict[str, Tensor]


class Words(nn.Module):
    """The first module of a SentenceTransformer, on words that are numbers already."""

    def __init__(self) -> None:
        super().__init__()
        self.words = BertModel(bert().config, add_pooling_layer=False)

    def tokenize(self, texts: list[str], **others: Any) -> Features:
        """Sentences of numbers as their numbers, padded."""
        numbers = [torch.tensor([int(word) for word in text.split()]) for text in texts]
        ids = pad_sequence(numbers, batch_first=True, padding_value=-1)
        return {"input_ids": ids.clamp_min(0), "attention_mask": (ids >= 0).long()}

    preprocess = tokenize

    def save(self, folder: str, **others: Any) -> None:
        torch.save(self.state_dict(), Path(folder) / "words.pt")

    @classmethod
    def load(cls, folder: str, subfolder: str = "", **others: Any) -> Words:
        words = cls().double()
        words.load_state_dict(torch.load(Path(folder) / subfolder / "words.pt"))
        return words

    def forward(self, features: Features) -> Features:
        keys = {key: features[key] for key in ("input_ids", "attention_mask")}
        return {**features, "token_embeddings": self.words(**keys).last_hidden_state}


def encoder() -> SentenceTransformer:
    torch.manual_seed(0)
    modules = [Words(), Pooling(16)]
    model = SentenceTransformer(modules=modules, device="cpu", trust_remote_code=True)
    return model.double().train()


def columns(samples: int = 6, seed: int = 1) -> list[Features]:
    """Two sentences per sample, padded to different lengths."""
    random = torch.Generator().manual_seed(seed)
    return [
        {
            "input_ids": torch.randint(50, (samples, length), generator=random),
            "attention_mask": (
                torch.arange(length) < torch.randint(2, length + 1, (samples, 1), generator=random)
            ).long(),
        }
        for length in (5, 7)
    ]


def atom_by_hand(model: Any, batch: list[Features]) -> Tensor:
    """The mean over the columns of the loss of the first layer."""
    terms = []
    for column in batch:
        out = model[0].words(**column, output_hidden_states=True)
        terms.append(plain_loss(out.hidden_states[1], column["attention_mask"].bool()))
    return torch.stack(terms).mean()


SCORES = torch.linspace(0, 1, 6, dtype=torch.float64)


@pytest.mark.parametrize("kind", ["MultipleNegativesRankingLoss", "CosineSimilarityLoss"])
def test_all_columns_count(kind: str) -> None:
    model = encoder()
    loss = getattr(losses, kind)(model)
    expected = loss(columns(), SCORES) + WEIGHT * atom_by_hand(model, columns())
    wanted = gradients(model, expected)
    atomsep.attach(loss, LAYER, weight=WEIGHT, runs="mean", add_to="loss")
    total = loss(columns(), SCORES)
    torch.testing.assert_close(total, expected)
    assert_same(gradients(model, total), wanted)


def test_a_cached_loss_is_refused() -> None:
    """It runs all forwards without gradients, and again in pieces during the backward pass.

    Pairs of different pieces never meet there, so there is no loss of the batch to add.
    """
    loss = losses.CachedMultipleNegativesRankingLoss(encoder(), mini_batch_size=2)
    atomsep.attach(loss, LAYER, weight=WEIGHT, runs="mean", add_to="loss")
    with pytest.raises(RuntimeError, match="gradient-cached losses .*without a cache"):
        loss(columns(), None)


class RecordingTrainer(SentenceTransformerTrainer):
    """Keeps the batches, in the order in which it drew them."""

    seen: list[dict[str, Tensor]]
    shuffled = True

    def get_batch_sampler(
        self, dataset: Dataset, batch_size: int, drop_last: bool, *rest: Any, **others: Any
    ) -> Any:
        if self.shuffled:
            return super().get_batch_sampler(dataset, batch_size, drop_last, *rest, **others)
        return BatchSampler(SequentialSampler(dataset), batch_size, drop_last)

    def compute_loss(self, model: Any, inputs: Any, *rest: Any, **others: Any) -> Any:
        self.seen.append(dict(inputs))
        return super().compute_loss(model, inputs, *rest, **others)


def pair_of(batch: dict[str, Tensor]) -> list[Features]:
    keys = ("input_ids", "attention_mask")
    return [{key: batch[f"{name}_{key}"] for key in keys} for name in ("first", "second")]


def make_trainer(folder: Path, accumulation: int, **others: Any) -> RecordingTrainer:
    """A trainer of an attached encoder, on pairs of random sentences."""
    model = encoder()
    loss = losses.CosineSimilarityLoss(model)
    atomsep.attach(loss, LAYER, weight=WEIGHT, runs="mean", add_to="loss")
    given = arguments(folder, accumulation, SentenceTransformerTrainingArguments, **others)
    random = Random(0)
    first, second = (
        [" ".join(map(str, random.choices(range(50), k=random.randint(2, 7)))) for _ in range(44)]
        for _ in range(2)
    )
    labels = [number / 43 for number in range(44)]
    data = Dataset.from_dict({"first": first, "second": second, "label": labels})
    trainer = RecordingTrainer(
        model, given, train_dataset=data, loss=loss,
        optimizers=(torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9), None),
    )  # fmt: skip
    trainer.seen = []
    return trainer


def losses_of(trainer: RecordingTrainer) -> list[float]:
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


@pytest.mark.parametrize("accumulation", [1, 4])
def test_ten_steps_equal_a_loop_by_hand(accumulation: int, tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, accumulation)
    trainer.train()
    plain = encoder()
    plain_loss_module = losses.CosineSimilarityLoss(plain)
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.05, momentum=0.9)
    wanted = []
    seen = iter(trainer.seen)
    per_epoch = [accumulation] * (11 // accumulation) + [11 % accumulation] * (accumulation > 1)
    for size in (per_epoch * 4)[:10]:
        optimizer.zero_grad()
        wanted.append(0.0)
        for _ in range(size):
            batch = next(seen)
            pair = pair_of(batch)
            task = plain_loss_module(pair, batch["label"])
            total = (task + WEIGHT * atom_by_hand(plain, pair)) / size
            total.backward()
            wanted[-1] += total.item()
        optimizer.step()
    assert losses_of(trainer) == pytest.approx(wanted, abs=1e-4)  # it logs four decimals
    states = dict(trainer.model.state_dict()), dict(plain.state_dict())
    torch.testing.assert_close(*states)


# after five steps the charges of so small an encoder are all positive for a while
@pytest.mark.filterwarnings("ignore:.*gives no negative scores:atomsep.AtomWarning")
def test_a_resumed_run_equals_the_unbroken_one(tmp_path: Path) -> None:
    saving = {"save_strategy": "steps", "save_steps": 5}
    unbroken, resumed = (make_trainer(tmp_path, 2, **saving) for _ in range(2))
    unbroken.shuffled = resumed.shuffled = False  # a resumed trainer of theirs draws another order
    unbroken.train()
    for parameter in resumed.model.parameters():
        nn.init.zeros_(parameter)
    resumed.train(str(tmp_path / "checkpoint-5"))
    assert losses_of(resumed) == losses_of(unbroken)
    states = dict(unbroken.model.state_dict()), dict(resumed.model.state_dict())
    torch.testing.assert_close(*states, rtol=1e-12, atol=1e-14)
