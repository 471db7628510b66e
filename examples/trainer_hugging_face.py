"""Hugging Face's Trainer, unchanged: a tiny LLaMA on random words."""

import tempfile

import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

import atomsep
from atomsep.integrations.transformers import AtomCallback

torch.manual_seed(0)
config = LlamaConfig(
    vocab_size=100, hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
    num_key_value_heads=2, intermediate_size=64, max_position_embeddings=16,
)  # fmt: skip
words = torch.randint(100, (32, 12))
dataset = [{"input_ids": row, "labels": row, "attention_mask": row * 0 + 1} for row in words]
arguments = TrainingArguments(
    tempfile.mkdtemp(), max_steps=2, gradient_accumulation_steps=4, logging_steps=1, use_cpu=True,
    per_device_train_batch_size=4, report_to="none", disable_tqdm=True, save_strategy="no",
)  # fmt: skip

# [start:hugging_face]
model = LlamaForCausalLM(config)  # or .from_pretrained(...)
model.atom = atomsep.AtomLoss(charge=nn.Linear(config.hidden_size, 1, bias=False))
attachment = atomsep.attach(model, "model.layers.0", model.atom, weight=0.01, add_to="loss")

trainer = Trainer(model, arguments, train_dataset=dataset, callbacks=[AtomCallback(attachment)])
trainer.train()
# [end:hugging_face]
