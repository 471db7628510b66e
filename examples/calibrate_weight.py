"""Calibrate a weight: a tenth of the task's gradient at the layer for a hundred steps.

The documentation shows the lines between the markers.
"""

from math import inf
from statistics import geometric_mean

import torch
from torch import nn
from torch.nn import functional as F

import atomsep

torch.manual_seed(0)
model = nn.Sequential(
    nn.Conv2d(3, 16, 3, 2), nn.BatchNorm2d(16), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 49, 10)
)
loader = [(torch.randn(16, 3, 16, 16), torch.randint(0, 10, (16,))) for _ in range(120)]
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

# [start:calibrate]
attachment = atomsep.attach(model, "1", weight=1.0)
attachment.watch_gradients = True
weights = []

for images, labels in loader:
    loss = F.cross_entropy(model(images), labels) + attachment.loss()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if len(weights) < 100 and 0 < (share := attachment.stats["gradient_share"]) < inf:
        attachment.weight *= 0.1 / share  # a tenth of the task's gradient in the next step
        weights.append(attachment.weight)
        if len(weights) == 100:  # from here on, their geometric mean
            attachment.weight = geometric_mean(weights)
            attachment.watch_gradients = False
# [end:calibrate]

print(f"weight {attachment.weight:.3g}, from {min(weights):.3g} to {max(weights):.3g}")
