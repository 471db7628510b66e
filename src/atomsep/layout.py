"""Which axis holds the tokens.

A latent is read as `(M, N, h)` without moving a number: a layout is a view. It is inferred from
the kind of module where that is certain, and asked for otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

Axes = Literal["channels_first", "channels_last", "length_first"]

DESCRIPTIONS: dict[Axes, str] = {
    "channels_first": "(M, C, H, W), (M, C, L)",
    "channels_last": "(M, L, C), (M, H, W, C)",
    "length_first": "(L, M, C)",
}


@dataclass(frozen=True)
class Layout:
    """A view of a layer's output as tokens.

    Attributes:
        axes: where samples, tokens and features lie.
        skip: tokens left out in front (class tokens).
    """

    axes: Axes = "channels_last"
    skip: int = 0

    def tokens(self, output: Tensor) -> Tensor:
        """The output as `(M, N, h)`; a view wherever the strides allow one."""
        if self.axes == "channels_first":
            tokens = output.flatten(2).transpose(1, 2)
        elif self.axes == "channels_last":
            tokens = output.flatten(1, -2)
        else:
            tokens = output.transpose(0, 1)
        return tokens[:, self.skip :] if self.skip else tokens

    def sizes(self, output: Tensor) -> tuple[int, int, int]:
        """M, N and h, without making the view."""
        shape = output.shape
        if self.axes == "channels_first":
            return shape[0], math.prod(shape[2:]) - self.skip, shape[1]
        if self.axes == "channels_last":
            return shape[0], math.prod(shape[1:-1]) - self.skip, shape[-1]
        return shape[1], shape[0] - self.skip, shape[2]

    def front(self, output: Tensor) -> Tensor:
        """The tokens that are skipped, `(M, skip, h)`."""
        return Layout(self.axes).tokens(output)[:, : self.skip]

    def token_shape(self, output: Tensor) -> tuple[int, ...]:
        """Shape of the tokens before any is skipped: `(M, H, W)` or `(M, L)`."""
        shape = tuple(output.shape)
        if self.axes == "channels_first":
            return (shape[0], *shape[2:])
        return shape[:-1] if self.axes == "channels_last" else (shape[1], shape[0])

    def empty_like(self, output: Tensor) -> Tensor:
        """Fresh memory for a gradient of the output, whose `tokens` are sure to be a view."""
        if torch.compiler.is_compiling():  # strides are the compiler's to choose
            return torch.empty_like(output, memory_format=torch.contiguous_format)
        fresh = torch.empty_like(output)
        first, last = (2, output.dim()) if self.axes == "channels_first" else (1, output.dim() - 1)
        shape, stride = fresh.shape, fresh.stride()
        if all(stride[i] == shape[i + 1] * stride[i + 1] for i in range(first, last - 1)):
            return fresh
        return torch.empty_like(output, memory_format=torch.contiguous_format)

    def flatten_mask(self, mask: Tensor, output: Tensor) -> Tensor:
        """A mask of the layer's tokens, `(M, H, W)` or `(M, L)`, as `(M, N)`."""
        expected = self.token_shape(output)
        length = math.prod(expected[1:])
        if self.skip and mask.shape == (expected[0], length - self.skip):
            mask = torch.nn.functional.pad(mask, (self.skip, 0))
        if tuple(mask.shape) != expected and mask.shape != (expected[0], length):
            raise ValueError(
                f"the mask has shape {tuple(mask.shape)}, but the tokens of the layer, whose "
                f"output is {tuple(output.shape)}, have {expected}"
            )
        if mask.is_floating_point():
            raise TypeError(
                f"the mask is {mask.dtype}; it must be boolean or 0/1 integers, "
                f"true on real tokens (an additive mask of -inf is not one)"
            )
        flat = mask.flatten(1)
        flat = flat if flat.dtype == torch.bool else flat != 0
        return flat[:, self.skip :] if self.skip else flat

    def unflatten(self, per_token: Tensor, output_shape: tuple[int, ...]) -> Tensor:
        """Per-token numbers `(M, N)` in the shape of the tokens: `(M, H, W)` or `(M, L)`."""
        if self.skip or len(output_shape) == 3:
            return per_token
        spatial = output_shape[2:] if self.axes == "channels_first" else output_shape[1:-1]
        return per_token.reshape(len(per_token), *spatial)


def resolve_layout(
    axes_by_dim: Mapping[int, Axes | None],
    skip: int,
    name: str,
    kind: str,
    output: Tensor,
    widths: Collection[int] | None = None,
) -> Layout:
    """The layout of a layer's output, from what is known of the layer for each number of axes.

    With `widths` the axis of the features must have one of these sizes.

    Raises:
        ValueError: the shape fits no layout, or none is certain.
    """
    shape = tuple(output.shape)
    if not 3 <= len(shape) <= 5:
        raise ValueError(
            f"layer {name!r} gives shape {shape}, which has no token axis; attach to a layer "
            f"before pooling or flattening, whose output is one of: "
            f"{', '.join(DESCRIPTIONS.values())}"
        )
    axes = axes_by_dim[len(shape)]
    features = shape[1] if axes == "channels_first" else shape[-1]
    if axes is None or (widths is not None and features not in widths):
        options = "; ".join(f'layout="{key}" for {text}' for key, text in DESCRIPTIONS.items())
        raise ValueError(
            f"layer {name!r} ({kind}) gives shape {shape}, and which axis holds the tokens is not "
            f"certain; pass {options}"
        )
    if axes == "length_first" and len(shape) != 3:
        raise ValueError(f'layout="length_first" means (L, M, C), but {name!r} gives {shape}')
    layout = Layout(axes, skip)
    tokens = math.prod(layout.token_shape(output)[1:])
    if skip >= tokens > 0:
        raise ValueError(
            f"skip_tokens={skip} leaves no token: layer {name!r} gives {tokens} of them, "
            f"shape {shape}"
        )
    return layout


_CHANNELS_FIRST: dict[type[nn.Module], int | None] = {
    **dict.fromkeys((nn.Conv1d, nn.ConvTranspose1d), 3),
    **dict.fromkeys((nn.Conv2d, nn.ConvTranspose2d, nn.BatchNorm2d, nn.InstanceNorm2d), 4),
    **dict.fromkeys((nn.Conv3d, nn.ConvTranspose3d, nn.BatchNorm3d, nn.InstanceNorm3d), 5),
    **dict.fromkeys((nn.BatchNorm1d, nn.InstanceNorm1d), 3),
    **dict.fromkeys((nn.GroupNorm, nn.SyncBatchNorm), None),
}
"""Modules whose features are axis 1, with the number of axes of a batch (None: any)."""

_CHANNELS_LAST = {nn.Linear, nn.LayerNorm, nn.RMSNorm, nn.Embedding}


def infer_axes(module: nn.Module, root: nn.Module, dim: int) -> Axes | None:
    """The axes of an output with `dim` axes where they are certain, else None.

    The leaves inside the layer must agree: convolutions and batch norms put features on axis 1,
    linear layers and layer norms last. Exact types only: a subclass may permute.
    A layer with both, or with neither, is not certain; nor is a sequence in a model that holds
    an attention or a recurrent layer with `batch_first=False`, where the first axis may be the
    length.
    """
    leaves = list(_last_leaves(module))
    first = [leaf for leaf in leaves if type(leaf) in _CHANNELS_FIRST]
    last = [leaf for leaf in leaves if type(leaf) in _CHANNELS_LAST]
    if first and not last:
        expected = {_CHANNELS_FIRST[type(leaf)] for leaf in first} - {None}
        return "channels_first" if expected <= {dim} else None
    if last and not first:
        if any(len(getattr(leaf, "normalized_shape", "1")) > 1 for leaf in last):
            return None  # a norm over several axes says nothing of which holds the features
        kinds = (nn.MultiheadAttention, nn.RNNBase)
        sequential = (m for m in root.modules() if isinstance(m, kinds))
        length_first = any(not module.batch_first for module in sequential)
        return None if dim == 3 and length_first else "channels_last"
    return None


def feature_widths(module: nn.Module) -> set[int]:
    """How many features the leaves that shape a layer's output give."""
    names = ("out_features", "out_channels", "num_features", "num_channels", "embedding_dim")
    widths: set[int] = set()
    for leaf in _last_leaves(module):
        widths.update(getattr(leaf, name) for name in names if hasattr(leaf, name))
        widths.update(getattr(leaf, "normalized_shape", ())[-1:])
    return widths


def _last_leaves(module: nn.Module) -> Iterator[nn.Module]:
    """The layers that shape the output: of a Sequential the last that has an opinion."""
    if isinstance(module, nn.Sequential):
        for child in reversed(list(module)):
            leaves = list(_last_leaves(child))
            if any(
                type(leaf) in _CHANNELS_FIRST or type(leaf) in _CHANNELS_LAST for leaf in leaves
            ):
                yield from leaves
                return
            if type(child) not in _SHAPE_KEEPING:
                return
        return
    children = list(module.children())
    if not children:
        yield module
    for child in children:
        yield from module_leaves(child)


def module_leaves(module: nn.Module) -> Iterator[nn.Module]:
    """Modules without children, anywhere below."""
    return (leaf for leaf in module.modules() if next(leaf.children(), None) is None)


_SHAPE_KEEPING = {
    *(nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.PReLU, nn.ELU, nn.GELU, nn.SiLU, nn.Mish, nn.Tanh),
    *(nn.Sigmoid, nn.Hardswish, nn.Softplus, nn.Identity, nn.Dropout, nn.Dropout2d),
}
