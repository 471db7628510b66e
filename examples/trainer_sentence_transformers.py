"""sentence-transformers: the loss module is what is attached, and every column counts."""

import torch
from sentence_transformers import SentenceTransformer, losses
from sentence_transformers.models import Pooling
from torch import nn
from transformers import BertConfig, BertModel

import atomsep


class Words(nn.Module):
    """A tiny BERT on words that are numbers already."""

    def __init__(self) -> None:
        super().__init__()
        sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
        self.auto_model = BertModel(BertConfig(vocab_size=100, **sizes), add_pooling_layer=False)

    def forward(self, features: dict) -> dict:
        """Add the words' vectors to the features."""
        return {**features, "token_embeddings": self.auto_model(**features).last_hidden_state}


torch.manual_seed(0)
model = SentenceTransformer(modules=[Words(), Pooling(32)], device="cpu").train()
columns = [
    {"input_ids": torch.randint(100, (8, 6)), "attention_mask": torch.ones(8, 6)} for _ in range(2)
]

# [start:sentence_transformers]
loss = losses.MultipleNegativesRankingLoss(model)
layer = "model.0.auto_model.encoder.layer.0"
attachment = atomsep.attach(loss, layer, weight=0.01, runs="mean", add_to="loss")
# [end:sentence_transformers]

loss(columns, None).backward()  # in practice: SentenceTransformerTrainer(model, ..., loss=loss)
print({name: round(value, 3) for name, value in attachment.stats.items()})
