"""Layers of a ResNet in which the last norm of every block starts at 0."""

from __future__ import annotations

import pytest
import torch
from torchvision.models import resnet50

from atomsep import attach
from atomsep.experiments.images.experiments import IMAGENET


@pytest.mark.parametrize(
    ("layer", "acts"), [(IMAGENET.settings.layer, False), ("layer1.2.bn2", True)]
)
def test_the_method_acts_from_the_first_step_where_the_norm_is_not_zero(
    layer: str, acts: bool
) -> None:
    torch.manual_seed(0)
    model = resnet50(num_classes=10, zero_init_residual=True)
    weights = [weight for name, weight in model.named_parameters() if name.startswith("layer1")]
    attachment = attach(model, layer)
    model(torch.rand(4, 3, 32, 32))
    gradients = torch.autograd.grad(attachment.loss(), weights, allow_unused=True)
    largest = max(float(each.abs().max()) for each in gradients if each is not None)
    assert largest > 1e-3 if acts else largest == 0
