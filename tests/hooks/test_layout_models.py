"""Layouts of real models: the gradient is that of a hook written by hand for the known layout."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import timm
import torch
import torchvision
from by_hand import WEIGHT, assert_same, gradients, plain_loss
from torch import Tensor, nn

import atomsep

IMAGES = torch.randn(3, 3, 32, 32, generator=torch.Generator().manual_seed(0))


def swin() -> nn.Module:
    return torchvision.models.SwinTransformer(
        [4, 4], 8, [1, 1], [2, 2], [2, 2], stochastic_depth_prob=0.0, num_classes=3
    )


def maxvit() -> nn.Module:
    return torchvision.models.MaxVit(
        (32, 32), 8, 2, [8, 8], [1, 1], 4, stochastic_depth_prob=0.0, num_classes=3
    )


def convnext() -> nn.Module:
    from torchvision.models.convnext import CNBlockConfig, ConvNeXt

    return ConvNeXt([CNBlockConfig(8, 16, 1), CNBlockConfig(16, None, 1)], 0.0, num_classes=3)


def from_timm(name: str, **options: Any) -> Callable[[], nn.Module]:
    return lambda: timm.create_model(name, num_classes=3, **options)


SMALL = {"depths": (1, 1, 1, 1), "dims": (8, 8, 16, 16)}
VIT = {"img_size": 32, "patch_size": 8, "embed_dim": 16, "depth": 2, "num_heads": 2}
MAPS, SEQUENCE, FLAT = "mchw", "mlc", "mhwc"

IMAGE_CASES = [
    (torchvision.models.resnet18, "layer1.1.relu", MAPS, 0),
    (torchvision.models.resnet18, "relu", MAPS, 0),
    (convnext, "features.1.0", MAPS, 0),
    (convnext, "features.1.0.block.4", FLAT, 0),
    (swin, "features.1.0", FLAT, 0),
    (swin, "features.1.0.mlp", FLAT, 0),
    (maxvit, "blocks.0", MAPS, 0),
    (from_timm("convnext_atto", **SMALL), "stages.0.blocks.0", MAPS, 0),
    (from_timm("convnext_atto", **SMALL), "stages.1", MAPS, 0),
    (from_timm("vit_tiny_patch16_224", **VIT), "patch_embed", SEQUENCE, 0),
    (from_timm("vit_tiny_patch16_224", **VIT), "blocks.0", SEQUENCE, 1),
    (from_timm("vit_tiny_patch16_224", **VIT), "blocks.1.mlp.act", SEQUENCE, 1),
    (from_timm("vit_tiny_patch16_224", **VIT, reg_tokens=4), "norm", SEQUENCE, 5),
    (from_timm("deit_tiny_distilled_patch16_224", **VIT), "blocks.0", SEQUENCE, 2),
    (from_timm("resnet10t"), "layer1.0.bn1", MAPS, 0),  # BatchNormAct2d
    (from_timm("tf_mobilenetv3_small_minimal_100"), "conv_stem", MAPS, 0),  # Conv2dSame
    (from_timm("nf_resnet26", layers=(1, 1, 1, 1)), "stages.0.0.conv1", MAPS, 0),  # ScaledStdConv2d
    (from_timm("mixer_s32_224", img_size=32, patch_size=8, num_blocks=1), "blocks.0", SEQUENCE, 0),
]


def read(layout: str, latent: Tensor, skip: int) -> Tensor:
    """A latent as `(M, N, h)`, by a layout that the test knows."""
    if layout == MAPS:
        return latent.flatten(2).transpose(1, 2)
    if layout == "lmc":
        return latent.transpose(0, 1)
    return latent.flatten(1, -2)[:, skip:]


def by_hand(
    model: nn.Module, layer: str, run: Callable[[nn.Module], Tensor], layout: str, skip: int
) -> dict[str, Tensor]:
    """All gradients with the plain loss on what a hook of three lines saw."""
    seen: list[Tensor] = []

    def hook(module: nn.Module, args: Any, output: Any) -> Any:
        first = output[0] if isinstance(output, tuple) else output
        seen.append(first)
        return (first.clone(), *output[1:]) if isinstance(output, tuple) else first.clone()

    handle = model.get_submodule(layer).register_forward_hook(hook)
    task = run(model)
    handle.remove()
    loss = task + WEIGHT * plain_loss(read(layout, seen[-1], skip).float())
    return gradients(model, loss)


def attached(
    model: nn.Module, layer: str, run: Callable[[nn.Module], Tensor]
) -> tuple[dict[str, Tensor], atomsep.Attachment]:
    attachment = atomsep.attach(model, layer, weight=WEIGHT)
    return gradients(model, run(model) + attachment.loss()), attachment


def classify(model: nn.Module) -> Tensor:
    torch.manual_seed(2)  # dropout
    logits = model(IMAGES)
    logits = logits[0] if isinstance(logits, tuple) else logits
    return logits.square().mean()  # type: ignore[no-any-return]


@pytest.mark.filterwarnings("ignore:layer .* gives no negative scores")
@pytest.mark.parametrize(("build", "layer", "layout", "skip"), IMAGE_CASES)
def test_images(build: Callable[[], nn.Module], layer: str, layout: str, skip: int) -> None:
    torch.manual_seed(0)
    model = build().train()
    expected = by_hand(model, layer, classify, layout, skip)
    actual, attachment = attached(model, layer, classify)
    assert_same(actual, expected, rtol=2e-4)
    assert attachment._taps[0].reader.layout.decided[1].skip == skip
