"""Layouts of real models: the gradient is that of a hook written by hand for the known layout."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
import torchvision
from by_hand import WEIGHT, assert_same, gradients, plain_loss
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import atomsep

IMAGES = torch.randn(3, 3, 32, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


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


def mixer() -> nn.Module:
    return timm.models.MlpMixer(
        num_classes=3, img_size=32, patch_size=8, num_blocks=2, embed_dim=12
    )


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
    (from_timm("nf_resnet26"), "stages.0.0.conv1", MAPS, 0),  # ScaledStdConv2d
    (mixer, "blocks.0", SEQUENCE, 0),
    (mixer, "blocks.0.mlp_channels.act", SEQUENCE, 0),
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
    tokens = read(layout, seen[-1], skip)
    loss = task + WEIGHT * plain_loss(tokens.to(torch.promote_types(tokens.dtype, torch.float32)))
    return gradients(model, loss)


def attached(
    model: nn.Module, layer: str, run: Callable[[nn.Module], Tensor]
) -> tuple[dict[str, Tensor], atomsep.Attachment]:
    attachment = atomsep.attach(model, layer, weight=WEIGHT)
    return gradients(model, run(model) + attachment.loss()), attachment


def classify(model: nn.Module, images: Tensor = IMAGES) -> Tensor:
    torch.manual_seed(2)  # dropout
    logits = model(images)
    logits = logits[0] if isinstance(logits, tuple) else logits
    return logits.square().mean()  # type: ignore[no-any-return]


@pytest.mark.filterwarnings("ignore:layer .* gives no negative scores")
@pytest.mark.parametrize(("build", "layer", "layout", "skip"), IMAGE_CASES)
def test_images(build: Callable[[], nn.Module], layer: str, layout: str, skip: int) -> None:
    torch.manual_seed(0)
    model = build().double().train()
    expected = by_hand(model, layer, classify, layout, skip)
    actual, attachment = attached(model, layer, classify)
    assert_same(actual, expected, rtol=1e-7)
    assert attachment._taps[0].reader.layout.decided[1].skip == skip


@pytest.mark.parametrize("layer", ["blocks.0.mlp_tokens", "blocks.1.mlp_tokens.act"])
def test_layers_that_mix_tokens_are_refused(layer: str) -> None:
    model = mixer()
    atomsep.attach(model, layer)
    with pytest.raises(ValueError, match="matrix product with features on axis 2, fed by a layer"):
        model(IMAGES.float())


def frozen_up_to_the_norm() -> nn.Module:
    model = mixer()
    model.stem.requires_grad_(False)
    model.blocks[0].norm1.requires_grad_(False)  # type: ignore[index, union-attr]
    return model


@pytest.mark.parametrize("make", [frozen_up_to_the_norm, lambda: mixer().requires_grad_(False)])
@pytest.mark.parametrize("layer", ["mlp_tokens", "mlp_tokens.fc1"])
def test_layers_that_mix_tokens_are_refused_where_they_are_frozen(make: Any, layer: str) -> None:
    model = make()
    atomsep.attach(model, f"blocks.0.{layer}")
    with pytest.raises(ValueError, match="its input is a transposed view, so it may mix tokens"):
        model(IMAGES.float())


def test_an_evaluation_does_not_take_mixed_tokens_for_features() -> None:
    model = mixer().eval()
    attachment = atomsep.attach(model, ["blocks.0.mlp_tokens", "blocks.0.mlp_channels"])
    with torch.no_grad():
        model(IMAGES.float())
    mixing, plain = attachment._taps
    with pytest.raises(RuntimeError, match="has no layout yet: .* it may mix tokens"):
        mixing.importance()
    assert plain.importance().shape == (3, 16)


def test_a_linear_layer_may_mix_the_tokens_of_the_model_s_input() -> None:
    class Mixing(nn.Module):
        def __init__(self, transposed: bool) -> None:
            super().__init__()
            self.layer, self.transposed = nn.Linear(5, 5), transposed

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x.mT if self.transposed else x)  # type: ignore[no-any-return]

    model = Mixing(transposed=True)
    atomsep.attach(model, "layer")
    with pytest.raises(ValueError, match="it may mix tokens"):
        model(torch.randn(3, 5, 4))
    plain = Mixing(transposed=False)
    attachment = atomsep.attach(plain, "layer")
    plain(torch.randn(3, 4, 5))
    assert attachment.importance.shape == (3, 4)


def test_a_frozen_norm_knows_the_features_of_a_transposed_view() -> None:
    """As in vision transformers without a class token, whose patches come from a convolution."""

    class Patches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 8, 8, 8)
            self.frozen = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)

        def forward(self, x: Tensor) -> Tensor:
            return self.frozen(self.conv(x).flatten(2).mT)  # type: ignore[no-any-return]

    model = Patches().eval()
    attachment = atomsep.attach(model, "frozen")
    with torch.no_grad():
        model(IMAGES.float())
    assert attachment.importance.shape == (3, 16)


@pytest.mark.filterwarnings("ignore:.*FSDP.*", "ignore:.*no_sync.*")
def test_layers_that_are_sharded_one_by_one(tmp_path: Path) -> None:
    """`fully_shard` makes subclasses of the layers' types and casts their parameters."""
    from torch import distributed
    from torch.distributed.fsdp import fully_shard

    model = nn.Sequential(
        nn.Linear(3, 8), nn.Tanh(), nn.Conv1d(5, 6, 1), nn.Flatten(), nn.Linear(48, 2)
    )
    plain, x = copy.deepcopy(model), torch.randn(4, 5, 3)
    store = distributed.FileStore(str(tmp_path / "store"), 1)
    distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        try:
            for layer in (model[0], model[2], model[4], model):
                fully_shard(layer)
            model(x)
        except (RuntimeError, NotImplementedError, AssertionError) as error:
            pytest.skip(f"this version cannot shard on the CPU: {error}")
        for name, axes in ("0", "channels_last"), ("1", "channels_last"), ("2", "channels_first"):
            attachment = atomsep.attach(model, name, weight=1.0)
            (model(x).sum() + attachment.loss()).backward()
            assert f"{name}: {axes} (M, " in repr(attachment)
            latent = plain[: int(name) + 1](x)
            latent = latent.mT if axes == "channels_first" else latent
            torch.testing.assert_close(attachment.importance, torch.tanh(latent[..., 0] / 2))
            attachment.detach()
    finally:
        distributed.destroy_process_group()


class Checkpointed(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(self.inner, x, use_reentrant=False)  # type: ignore[no-any-return]


def classify_in_half(model: nn.Module) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        return classify(model, IMAGES.float())


@pytest.mark.filterwarnings("ignore:layer .* gives no negative scores")
@pytest.mark.parametrize("layer", ["layer1.1.relu", "layer1.1.bn2"])
def test_under_autocast_and_checkpointing(layer: str) -> None:
    torch.manual_seed(0)
    model = torchvision.models.resnet18(num_classes=3)
    expected = by_hand(model, layer, classify_in_half, MAPS, 0)
    model.layer1 = Checkpointed(model.layer1)
    actual, _ = attached(model, layer.replace("layer1", "layer1.inner"), classify_in_half)
    plain = {name.replace(".inner", ""): gradient for name, gradient in actual.items()}
    assert_same(plain, expected, rtol=2e-2)
