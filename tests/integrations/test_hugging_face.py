"""Hugging Face's Trainer, unchanged, on a model that adds the atom loss to its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from by_hand import WEIGHT
from tiny_texts import MODELS, arguments, groups, make_trainer, train_by_hand

import atomsep


def attached(kind: str, **others: Any) -> tuple[Any, atomsep.Attachment]:
    make, layer = MODELS[kind]
    model = make()
    return model, atomsep.attach(model, layer, weight=WEIGHT, add_to="loss", **others)


def logged(trainer: Any) -> list[float]:
    return [float(entry["loss"]) for entry in trainer.state.log_history if "loss" in entry]


def assert_equal(model: Any, expected: Any) -> None:
    torch.testing.assert_close(
        dict(model.named_parameters()), dict(expected.named_parameters()), rtol=1e-6, atol=1e-8
    )


@pytest.mark.parametrize("accumulation", [1, 4])
@pytest.mark.parametrize("kind", ["bert", "llama"])
def test_ten_steps_equal_a_loop_by_hand(kind: str, accumulation: int, tmp_path: Path) -> None:
    model, _ = attached(kind)
    trainer = make_trainer(model, kind, arguments(tmp_path, accumulation))
    trainer.train()
    steps = groups(trainer.recorder.batches, accumulation)
    divided = not trainer.model_accepts_loss_kwargs
    expected, losses = train_by_hand(kind, steps, classes_divided=divided)
    assert_equal(model, expected)
    assert logged(trainer) == pytest.approx(losses, abs=1e-4)
