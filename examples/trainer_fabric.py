"""Lightning Fabric: attach before setup, and add the loss in your own loop."""

import torch
import torchvision
from lightning.fabric import Fabric
from torch.nn import functional as F

import atomsep

torch.manual_seed(0)
loader = [(torch.randn(4, 3, 32, 32), torch.randint(10, (4,))) for _ in range(4)]

# [start:fabric]
fabric = Fabric(accelerator="cpu", precision="bf16-mixed")
model = torchvision.models.resnet18(num_classes=10)
attachment = atomsep.attach(model, "layer1.1.bn2", weight=0.2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
model, optimizer = fabric.setup(model, optimizer)

for step, (images, labels) in enumerate(loader):
    accumulating = step % 2 == 0  # two micro-batches per step
    with fabric.no_backward_sync(model, enabled=accumulating):
        loss = (F.cross_entropy(model(images), labels) + attachment.loss()) / 2
        fabric.backward(loss)
    if not accumulating:
        optimizer.step()
        optimizer.zero_grad()
# [end:fabric]

print(f"loss {2 * loss.item():.3f}")
