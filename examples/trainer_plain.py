"""Plain PyTorch with gradient accumulation, mixed precision and a checkpoint."""

import tempfile
from pathlib import Path

import torch
import torchvision
from torch import nn
from torch.nn import functional as F

import atomsep

torch.manual_seed(0)
loader = [(torch.randn(4, 3, 32, 32), torch.randint(10, (4,))) for _ in range(4)]
checkpoint = Path(tempfile.mkdtemp()) / "checkpoint.pt"

# [start:plain]
criterion = atomsep.AtomLoss(charge=nn.Linear(64, 1))  # a learned score
model = torchvision.models.resnet18(num_classes=10)
attachment = atomsep.attach(model, "layer1.1.bn2", criterion, weight=0.2)
optimizer = torch.optim.SGD([*model.parameters(), *attachment.parameters()], lr=0.05)

for step, (images, labels) in enumerate(loader):
    with torch.autocast("cpu", torch.bfloat16):
        task = F.cross_entropy(model(images), labels)
    loss = (task + attachment.loss()) / 2  # two micro-batches per step
    loss.backward()
    if step % 2:
        optimizer.step()
        optimizer.zero_grad()

parts = {"model": model, "atom": attachment, "optimizer": optimizer}
torch.save({name: part.state_dict() for name, part in parts.items()}, checkpoint)
for name, state in torch.load(checkpoint).items():
    parts[name].load_state_dict(state)
# [end:plain]

print(f"loss {2 * loss.item():.3f}")
