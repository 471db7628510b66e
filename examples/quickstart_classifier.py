"""Atom modeling in an image classifier: torchvision's ResNet-18 with random images.

The documentation shows the lines between the markers.
"""

# [start:quickstart]
import torch
import torchvision
from torch.nn import functional as F

import atomsep

loader = [(torch.randn(8, 3, 64, 64), torch.randint(10, (8,))) for _ in range(3)]  # your data
model = torchvision.models.resnet18(num_classes=10)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
attachment = atomsep.attach(model, "layer1.1.bn2", weight=0.2)  # before the activation

for images, labels in loader:
    loss = F.cross_entropy(model(images), labels) + attachment.loss()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

importance = attachment.importance  # (M, H, W): the charge of every position, in [-1, 1]
# [end:quickstart]

print(f"loss {loss.item():.3f}")
print(f"importance {tuple(importance.shape)} in [{importance.min():.2f}, {importance.max():.2f}]")
print({name: round(value, 3) for name, value in attachment.stats.items()})
