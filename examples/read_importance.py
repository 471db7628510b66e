"""Read token importance: a map over an image, and one number per word.

The documentation shows the lines between the markers. Models and data are random, so the output
shows shapes and ranges, not meaning.
"""

import torch
import torchvision
from torch.nn import functional as F
from transformers import BertConfig, BertForSequenceClassification

import atomsep

torch.manual_seed(0)
images = torch.randn(2, 3, 64, 64)
model = torchvision.models.resnet18(num_classes=10)
attachment = atomsep.attach(model, "layer1.1.bn2")

# [start:maps]
model.eval()
with torch.no_grad():
    model(images)
maps = attachment.importance  # (M, 16, 16) in [-1, 1] for 64 x 64 images
overlay = F.interpolate(maps.unsqueeze(1), images.shape[-2:], mode="bilinear")
# [end:maps]
print(f"maps {tuple(maps.shape)}, overlay {tuple(overlay.shape)}")

words = ["[CLS]", "the", "cat", "sat", "[SEP]", "[PAD]"]
batch = {
    "input_ids": torch.arange(6).unsqueeze(0),
    "attention_mask": torch.tensor([[1, 1, 1, 1, 1, 0]]),
}
config = BertConfig(vocab_size=6, hidden_size=32, num_hidden_layers=1, num_attention_heads=2)
bert = BertForSequenceClassification(config)
of_words = atomsep.attach(bert, "bert.encoder.layer.0")

# [start:words]
bert.eval()
with torch.no_grad():
    bert(**batch)
for word, charge in zip(words, of_words.importance[0].tolist(), strict=True):
    print(f"{word:>8} {charge:+.2f}")
# [end:words]
