"""Atom modeling in a Hugging Face model: a tiny BERT, with random words and padding.

The documentation shows the lines between the markers.
"""

import torch
from torch import nn
from transformers import BertConfig, BertForSequenceClassification

import atomsep

torch.manual_seed(0)
config = BertConfig(
    vocab_size=100, hidden_size=64, num_hidden_layers=2, num_attention_heads=2,
    intermediate_size=128, max_position_embeddings=16,
)  # fmt: skip
lengths = torch.randint(4, 13, (3, 8, 1))
loader = [
    {
        "input_ids": torch.randint(100, (8, 12)),
        "attention_mask": (torch.arange(12) < length).long(),
        "labels": torch.randint(2, (8,)),
    }
    for length in lengths
]

# [start:quickstart]
model = BertForSequenceClassification(config)  # or .from_pretrained(...)
criterion = atomsep.AtomLoss(charge=nn.Linear(config.hidden_size, 1))  # a learned score
attachment = atomsep.attach(model, "bert.encoder.layer.0", criterion, weight=0.01)
optimizer = torch.optim.AdamW([*model.parameters(), *attachment.parameters()], lr=1e-4)

for batch in loader:
    loss = model(**batch).loss + attachment.loss()  # finds the attention_mask
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

importance = attachment.importance  # (M, L): the charge of every token, 0 on padding
# [end:quickstart]

print(f"loss {loss.item():.3f}")
print(f"importance {tuple(importance.shape)} in [{importance.min():.2f}, {importance.max():.2f}]")
print({name: round(value, 3) for name, value in attachment.stats.items()})
