"""The networks are those of PyTorch's example."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from atomsep.experiments.gan.dcgan import Discriminator, Generator
from atomsep.experiments.gan.experiments import LAST_HIDDEN


def size(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize(
    ("channels", "generator", "discriminator"),
    [(1, 3_574_656, 2_763_520), (3, 3_576_704, 2_765_568)],
)
def test_they_have_the_parameters_of_the_example(
    channels: int, generator: int, discriminator: int
) -> None:
    assert size(Generator(channels)) == generator
    assert size(Discriminator(channels)) == discriminator


def test_the_last_hidden_layer_is_the_normalisation_before_the_last_relu() -> None:
    model = Generator(1, width=5)
    layers = dict(model.named_modules())
    assert isinstance(layers[LAST_HIDDEN], nn.BatchNorm2d)
    assert isinstance(layers["main.11"], nn.ReLU)
    shapes = []
    layers[LAST_HIDDEN].register_forward_hook(lambda *call: shapes.append(tuple(call[2].shape)))
    assert model(torch.randn(3, 100, 1, 1)).abs().max() <= 1
    assert shapes == [(3, 5, 32, 32)]


def test_weights_start_as_in_the_example() -> None:
    torch.manual_seed(0)
    for model in (Generator(3), Discriminator(3)):
        for layer in model.modules():
            if isinstance(layer, nn.Conv2d | nn.ConvTranspose2d):
                assert layer.bias is None
                if layer.weight.numel() > 50_000:
                    assert layer.weight.std().item() == pytest.approx(0.02, rel=0.02)
                    assert layer.weight.mean().item() == pytest.approx(0, abs=5e-4)
            if isinstance(layer, nn.BatchNorm2d):
                assert layer.weight.mean().item() == pytest.approx(1, abs=0.02)
                assert 0.01 < layer.weight.std() < 0.03
                assert not layer.bias.any()
