"""Choosing a weight by what it amounts to: a tenth of the task's gradient at the layer.

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
shares = []

for images, labels in loader:
    loss = F.cross_entropy(model(images), labels) + attachment.loss()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if len(shares) < 100 and 0 < (share := attachment.stats["gradient_share"]) < inf:
        shares.append(share)
        if len(shares) == 100:  # the weight whose gradient was a tenth of the task's until here
            attachment.weight *= 0.1 / geometric_mean(shares)
            attachment.watch_gradients = False
# [end:calibrate]

print(f"share at weight 1 {geometric_mean(shares):.3g}, so weight {attachment.weight:.3g}")
