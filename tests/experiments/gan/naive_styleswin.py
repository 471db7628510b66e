"""StyleSwin's networks written out, from a published state by its names.

Slow and plain: attention over all pairs of tokens with a mask, filters as zeros between pixels and
a convolution, spectral norm by torch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional as F

State = Mapping[str, Tensor]


def upfirdn(images: Tensor, up: int = 1, down: int = 1, pad: tuple[int, int] = (0, 0)) -> Tensor:
    """Zeros between pixels, zeros around, the filter [1, 3, 3, 1], and every `down`-th pixel."""
    size, channels, side, _ = images.shape
    spread = images.new_zeros(size, channels, side * up, side * up)
    spread[..., ::up, ::up] = images
    line = torch.tensor([1, 3, 3, 1]).to(images)
    kernel = torch.outer(line, line) / 64 * up**2
    padded = F.pad(spread, (*pad, *pad)).flatten(0, 1).unsqueeze(1)
    out = F.conv2d(padded, kernel[None, None]).unflatten(0, (size, channels)).squeeze(2)
    return out[..., ::down, ::down]


def see_each_other(side: int, window: int, shift: int) -> Tensor:
    """Which tokens share a window `(N, N)`, if windows start at `shift` and end at the edges."""
    place = (torch.arange(side) - shift).div(window, rounding_mode="floor")
    both = torch.stack(torch.meshgrid(place, place, indexing="ij"), -1).flatten(0, 1)
    same: Tensor = (both[:, None] == both[None]).all(-1)
    return same


def attend(qkv: Tensor, table: Tensor, window: int, shift: int) -> Tensor:
    """Softmax over all pairs of tokens of `(M, H, W, 3, C)` that share a window."""
    size, side, heads = len(qkv), qkv.shape[1], table.shape[1]
    q, k, v = qkv.flatten(1, 2).unflatten(-1, (heads, -1)).unbind(2)
    scores = torch.einsum("mihd,mjhd->mhij", q, k) / math.sqrt(q.shape[-1])
    y, x = torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij")
    dy, dx = (each.flatten()[:, None] - each.flatten() for each in (y, x))
    same = see_each_other(side, window, shift)
    row = (dy + window - 1) * (2 * window - 1) + dx + window - 1
    bias = table[torch.where(same, row, 0)].permute(2, 0, 1)
    weights = (scores + bias).masked_fill(~same, -math.inf).softmax(-1)
    return torch.einsum("mhij,mjhd->mihd", weights, v).reshape(size, side, side, -1)


def generate(state: State, noise: Tensor) -> Tensor:
    """Normalised colours `(M, 3, H, W)` of noise `(M, z)`."""

    def linear(x: Tensor, name: str) -> Tensor:
        return F.linear(x, state[f"{name}.weight"], state.get(f"{name}.bias"))

    style = noise / noise.square().mean(1, keepdim=True).add(1e-8).sqrt()
    for index in range(1, 9):
        weight, bias = state[f"style.{index}.weight"], state[f"style.{index}.bias"]
        style = style @ weight.T * 0.01 / math.sqrt(weight.shape[1]) + bias * 0.01
        style = F.leaky_relu(style, 0.2) * math.sqrt(2)

    def norm(x: Tensor, name: str) -> Tensor:
        weight = state[f"{name}.style.weight"]
        both = style @ weight.T / math.sqrt(weight.shape[1]) + state[f"{name}.style.bias"]
        scale, shift = both.chunk(2, 1)
        normalised = F.instance_norm(x.permute(0, 3, 1, 2), eps=1e-5).permute(0, 2, 3, 1)
        return scale[:, None, None] * normalised + shift[:, None, None]

    x = state["input.input"].permute(0, 2, 3, 1).repeat(len(noise), 1, 1, 1)
    layers = 1 + max(int(name.split(".")[1]) for name in state if name.startswith("layers."))
    image = None
    for layer in range(layers):
        side = x.shape[1]
        window = min(side, 8)
        for block in range(2):
            name = f"layers.{layer}.blocks.{block}"
            halves = linear(norm(x, f"{name}.norm1"), f"{name}.qkv").unflatten(-1, (3, -1))
            seen = [
                attend(half, state[f"{name}.attn.{n}.relative_position_bias_table"], window, shift)
                for n, (half, shift) in enumerate(
                    zip(halves.chunk(2, -1), (0, 4 if side > 8 else 0), strict=True)
                )
            ]
            x = x + linear(torch.cat(seen, -1), f"{name}.proj")
            inner = F.gelu(linear(norm(x, f"{name}.norm2"), f"{name}.mlp.fc1"))
            x = x + linear(inner, f"{name}.mlp.fc2")
        if layer < layers - 1:
            name = f"layers.{layer}.upsample"
            x = F.interpolate(x.permute(0, 3, 1, 2).contiguous(), scale_factor=2, mode="bilinear")
            x = x.permute(0, 2, 3, 1)
            weight, bias = state[f"{name}.norm.weight"], state[f"{name}.norm.bias"]
            x = linear(F.layer_norm(x, x.shape[-1:], weight, bias), f"{name}.reduction")
            x = x + state[f"{name}.alpha"] * positions(*x.shape[2:]).to(x)
        colours = F.conv2d(
            x.permute(0, 3, 1, 2),
            state[f"to_rgbs.{layer}.conv.weight"],
            state[f"to_rgbs.{layer}.conv.bias"],
        )
        colours = colours + state[f"to_rgbs.{layer}.bias"]
        if image is not None:
            image = image if layer == layers - 1 else upfirdn(image, up=2, pad=(2, 1))
        image = colours if image is None else image + colours
    assert image is not None
    return image


def positions(side: int, features: int) -> Tensor:
    """Sines and cosines, number by number."""
    out = torch.zeros(side, side, features, dtype=torch.float64)
    quarter = features // 4
    for k in range(quarter):
        rate = 10_000 ** (-k / (quarter - 1))
        for place in range(side):
            angle = (place + 1) * rate
            out[:, place, k], out[:, place, quarter + k] = math.sin(angle), math.cos(angle)
            out[place, :, 2 * quarter + k] = math.sin(angle)
            out[place, :, 3 * quarter + k] = math.cos(angle)
    return out


def wavelet(images: Tensor) -> Tensor:
    """Haar's coefficients as strided convolutions."""
    signs = [[[1, 1], [1, 1]], [[1, 1], [-1, -1]], [[1, -1], [1, -1]], [[1, -1], [-1, 1]]]
    channels = images.shape[1]
    parts = [
        F.conv2d(
            images,
            torch.tensor(each).to(images).expand(channels, 1, 2, 2) / 2,
            stride=2,
            groups=channels,
        )
        for each in signs
    ]
    return torch.cat(parts, 1)


def normed(state: State, name: str) -> tuple[Tensor, Tensor, Tensor]:
    """A weight after torch's spectral norm in training, and the vectors that it leaves."""
    weight = state[f"{name}.weight_orig"]
    layer = nn.Conv2d(*weight.shape[1::-1], weight.shape[-1], bias=False)
    if weight.ndim == 2:
        layer = nn.Linear(*weight.shape[::-1], bias=False)  # type: ignore[assignment]
    layer = nn.utils.spectral_norm(layer.to(weight))
    kinds = ("weight_orig", "weight_u", "weight_v")
    layer.load_state_dict({kind: state[f"{name}.{kind}"] for kind in kinds})
    inputs = (1, weight.shape[1], *weight.shape[2:]) if weight.ndim == 4 else (1, weight.shape[1])
    layer(weight.new_zeros(inputs))
    return layer.weight.detach(), layer.weight_u, layer.weight_v


def judge(state: State, images: Tensor) -> Tensor:
    """Logits `(M,)` of images in normalised colours."""

    def active(x: Tensor, name: str) -> Tensor:
        bias = state[f"{name}.bias"].reshape(1, -1, *(1,) * (x.ndim - 2))
        return F.leaky_relu(x + bias, 0.2) * math.sqrt(2)

    levels = 1 + max(int(name.split(".")[1]) for name in state if name.startswith("from_rgbs."))
    x = torch.zeros(())
    for level in range(levels):
        name = f"from_rgbs.{level}.conv"
        entering = F.conv2d(wavelet(images), normed(state, f"{name}.0")[0])
        x = active(entering, f"{name}.1") + x
        if level < levels - 1:
            name = f"convs.{level}"
            x = active(
                F.conv2d(x, normed(state, f"{name}.conv1.0")[0], padding=1), f"{name}.conv1.1"
            )
            x = upfirdn(x, pad=(2, 2))
            x = active(
                F.conv2d(x, normed(state, f"{name}.conv2.1")[0], stride=2), f"{name}.conv2.2"
            )
        images = upfirdn(images, down=2, pad=(1, 1))
    spread = torch.stack([x[start :: len(x) // 4] for start in range(len(x) // 4)]).var(
        1, correction=0
    )
    spread = (spread + 1e-8).sqrt().mean((1, 2, 3)).repeat(4)
    x = torch.cat((x, spread.reshape(-1, 1, 1, 1).expand(-1, 1, 4, 4)), 1)
    x = active(F.conv2d(x, normed(state, "final_conv.0")[0], padding=1), "final_conv.1")
    x = F.linear(x.flatten(1), normed(state, "final_linear.0")[0], state["final_linear.0.bias"])
    x = active(x, "final_linear.1")
    last = normed(state, "final_linear.2")[0]
    return F.linear(x, last, state["final_linear.2.bias"]).flatten()


MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def changed(pixels: Tensor) -> Tensor:
    """Images in [0, 1] as the discriminator is to judge them alike, in normalised colours."""
    count, _, side, _ = pixels.shape
    flips = torch.rand(count, 1, 1, 1, dtype=pixels.dtype)
    most = side // 8
    moves = torch.randint(-most, most + 1, (2, count, 1))
    light, saturation, contrast = (torch.rand(count, 1, 1, 1, dtype=pixels.dtype) for _ in "lsc")
    centres = torch.randint(0, side + 1, (2, count, 1))
    images = []
    for n, image in enumerate(pixels):
        image = torch.stack([(c - m) / d for c, m, d in zip(image, MEAN, DEVIATION, strict=True)])
        if flips[n] < 0.5:
            image = image.flip(2)
        out = torch.zeros_like(image)
        down, right = (int(each) for each in moves[:, n, 0])
        for y in range(side):
            for x in range(side):
                if 0 <= y + down < side and 0 <= x + right < side:
                    out[:, y, x] = image[:, y + down, x + right]
        out = out + (light[n, 0] - 0.5)
        grey = out.mean(0)
        out = grey + (out - grey) * 2 * saturation[n, 0]
        out = out.mean() + (out - out.mean()) * (0.5 + contrast[n, 0])
        top, left = (int(each) - side // 4 for each in centres[:, n, 0])
        for y in range(max(top, 0), min(top + side // 2, side)):
            for x in range(max(left, 0), min(left + side // 2, side)):
                out[:, y, x] = 0
        images.append(out)
    return torch.stack(images)
