"""Atom modeling in a GAN: DCGAN's generator with random 64 x 64 images.

The documentation shows the lines between the markers.
"""

import torch
from torch import nn
from torch.nn import functional as F

import atomsep

WIDTH = 8


def up(inputs: int, outputs: int, stride: int = 2, padding: int = 1) -> list[nn.Module]:
    """One stage of the generator: transposed convolution, BatchNorm, ReLU."""
    convolution = nn.ConvTranspose2d(inputs, outputs, 4, stride, padding, bias=False)
    return [convolution, nn.BatchNorm2d(outputs), nn.ReLU(inplace=True)]


def dcgan_generator() -> nn.Sequential:
    """DCGAN's generator; its last BatchNorm is module "10"."""
    stages = [*up(100, 8 * WIDTH, 1, 0), *up(8 * WIDTH, 4 * WIDTH), *up(4 * WIDTH, 2 * WIDTH)]
    last = [*up(2 * WIDTH, WIDTH), nn.ConvTranspose2d(WIDTH, 1, 4, 2, 1, bias=False), nn.Tanh()]
    return nn.Sequential(*stages, *last)


torch.manual_seed(0)
loader = [torch.rand(8, 1, 64, 64) * 2 - 1 for _ in range(3)]
critic = nn.Sequential(
    nn.Conv2d(1, WIDTH, 4, 4), nn.LeakyReLU(0.2), nn.Flatten(), nn.Linear(WIDTH * 256, 1)
)
critic_optimizer = torch.optim.Adam(critic.parameters(), lr=2e-4, betas=(0.5, 0.999))

# [start:quickstart]
generator = dcgan_generator()
optimizer = torch.optim.Adam(generator.parameters(), lr=2e-4, betas=(0.5, 0.999))
attachment = atomsep.attach(generator, "10", weight=1.0)  # the BatchNorm before the last ReLU

for real in loader:
    fake = generator(torch.randn(len(real), 100, 1, 1))
    critic_loss = F.softplus(-critic(real)).mean() + F.softplus(critic(fake.detach())).mean()
    critic_optimizer.zero_grad()
    critic_loss.backward()
    critic_optimizer.step()

    generator_loss = F.softplus(-critic(fake)).mean() + attachment.loss()
    optimizer.zero_grad()
    generator_loss.backward()
    optimizer.step()
# [end:quickstart]

print(f"critic {critic_loss.item():.3f}, generator {generator_loss.item():.3f}")
print({name: round(value, 3) for name, value in attachment.stats.items()})
