"""Accelerate: attach before prepare, and add the loss in your own loop."""

import torch
import torchvision
from accelerate import Accelerator
from torch.nn import functional as F

import atomsep

torch.manual_seed(0)
loader = [(torch.randn(4, 3, 32, 32), torch.randint(10, (4,))) for _ in range(4)]

# [start:accelerate]
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
model = torchvision.models.resnet18(num_classes=10)
attachment = atomsep.attach(model, "layer1.1.bn2", weight=0.2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
model, optimizer = accelerator.prepare(model, optimizer)

for images, labels in loader:
    with accelerator.accumulate(model):
        loss = F.cross_entropy(model(images), labels) + attachment.loss()
        accelerator.backward(loss)  # divides by the number of micro-batches
        optimizer.step()
        optimizer.zero_grad()
# [end:accelerate]

print(f"loss {loss.item():.3f}")
