"""Tiny language models, batches of random words, and their training loop written by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from by_hand import WEIGHT, bert, plain_loss
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

LEARNING_RATE = 0.05


def llama() -> Any:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=50, hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=2, intermediate_size=32, max_position_embeddings=16,
        attn_implementation="eager",
    )  # fmt: skip
    return LlamaForCausalLM(config).double()


MODELS = {"bert": (bert, "bert.encoder.layer.0"), "llama": (llama, "model.layers.0")}


class Texts(torch.utils.data.Dataset):
    """Random words with padding; labels are classes, or the words themselves."""

    def __init__(self, kind: str, samples: int = 44) -> None:
        random = torch.Generator().manual_seed(3)
        self.rows = []
        for _ in range(samples):
            length = int(torch.randint(3, 8, (), generator=random))
            words = torch.randint(50, (7,), generator=random)
            mask = (torch.arange(7) < length).long()
            labels = words.masked_fill(mask == 0, -100)
            row = {"input_ids": words, "attention_mask": mask}
            self.rows.append({**row, "labels": labels if kind == "llama" else words[0] % 2})

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return self.rows[index]


class Recorder:
    """A collator that keeps every batch, so that a loop by hand can repeat them."""

    def __init__(self) -> None:
        self.batches: list[dict[str, Tensor]] = []

    def __call__(self, rows: list[dict[str, Tensor]]) -> dict[str, Tensor]:
        batch = {key: torch.stack([row[key] for row in rows]) for key in rows[0]}
        self.batches.append(batch)
        return batch


def arguments(
    folder: Path, accumulation: int, kind: type = TrainingArguments, **others: Any
) -> Any:
    settings = {
        "output_dir": str(folder), "per_device_train_batch_size": 4, "max_steps": 10,
        "gradient_accumulation_steps": accumulation, "logging_steps": 1, "save_strategy": "no",
        "report_to": "none", "use_cpu": True, "disable_tqdm": True, "max_grad_norm": 0.0,
        "lr_scheduler_type": "constant", "dataloader_pin_memory": False, **others,
    }  # fmt: skip
    return kind(**settings)


def make_trainer(model: Any, kind: str, args: TrainingArguments, **others: Any) -> Trainer:
    """A Trainer that keeps its batches, and what it tells the model to divide by."""
    recorder = Recorder()
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE, momentum=0.9)
    trainer = Trainer(
        model, args, train_dataset=Texts(kind), data_collator=recorder,
        optimizers=(optimizer, None), **others,
    )  # fmt: skip
    trainer.recorder, trainer.totals = recorder, []

    def keep(module: nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
        if module.training:
            trainer.totals.append(kwargs.get("num_items_in_batch"))

    model.register_forward_pre_hook(keep, with_kwargs=True)
    return trainer


def groups(batches: list[Any], accumulation: int) -> list[list[Any]]:
    """The micro-batches of each step: eleven batches per epoch, the rest in a shorter step."""
    steps = []
    for epoch in range(0, len(batches), 11):
        of_epoch = batches[epoch : epoch + 11]
        steps += [of_epoch[start : start + accumulation] for start in range(0, 11, accumulation)]
    return steps[:10]


def task_and_atom(model: Any, batch: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """The summed task loss of a micro-batch, and its atom loss by the plain formulas."""
    out = model(
        input_ids=batch["input_ids"], attention_mask=batch["attention_mask"],
        output_hidden_states=True,
    )  # fmt: skip
    logits, labels = out.logits, batch["labels"]
    if labels.dim() == 2:
        # the model computes its loss in float32, whatever its weights are
        logits, labels = logits[:, :-1].flatten(0, 1).float(), labels[:, 1:].flatten()
    task = F.cross_entropy(logits, labels, reduction="sum")
    return task, plain_loss(out.hidden_states[1], batch["attention_mask"].bool())


def train_by_hand(
    kind: str, steps: list[list[dict[str, Tensor]]], trainer: Any, *, divided: bool | None = None
) -> tuple[nn.Module, list[float]]:
    """The model after these steps, and the loss of each.

    The task's loss is what the Trainer makes of it without atom modeling: a mean over all items of
    a step for a language model, and for a classifier the mean or the sum of the micro-batches'
    means, which differs between versions of the Trainer. The atom loss is always a mean.
    """
    model = MODELS[kind][0]().train()
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE, momentum=0.9)
    divided = not trainer.model_accepts_loss_kwargs if divided is None else divided
    totals = iter(trainer.totals)
    losses = []
    for batches in steps:
        count = len(batches)
        if not hasattr(trainer, "current_gradient_accumulation_steps"):
            count = (
                trainer.args.gradient_accumulation_steps
            )  # older versions: also in a shorter step
        optimizer.zero_grad()
        step_loss = 0.0
        for batch in batches:
            task, atom = task_and_atom(model, batch)
            total = next(totals)
            if kind == "bert":
                task = task / len(batch["labels"]) / (count if divided else 1)
            else:
                task = task / total
            loss = task + WEIGHT * atom / count
            loss.backward()
            step_loss += loss.item()
        optimizer.step()
        losses.append(step_loss)
    return model, losses
