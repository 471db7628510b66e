"""Which axis of a layer's output holds the tokens: inferred where certain, otherwise asked for."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping

from torch import Tensor, nn

from atomsep.core.layout import DESCRIPTIONS, Axes, Layout


def resolve_layout(
    axes_by_dim: Mapping[int, Axes | None],
    skip: int,
    name: str,
    kind: str,
    output: Tensor,
    widths: Collection[int] | None = None,
) -> Layout:
    """The layout of a layer's output.

    Args:
        axes_by_dim: the layer's axes for each number of dimensions; None where not certain.
        skip: number of tokens in front to leave out.
        name: the layer's name, for the messages.
        kind: the layer's class, for the messages.
        output: what the layer returned.
        widths: sizes that the feature axis may have; None for any.

    Raises:
        ValueError: the shape fits no layout, or none is certain.
    """
    shape = tuple(output.shape)
    if not 3 <= len(shape) <= 5:
        raise ValueError(
            f"layer {name!r} gives shape {shape}, which has no token axis. Attach to a layer "
            f"before pooling or flattening, whose output is one of "
            f"{', '.join(DESCRIPTIONS.values())}"
        )
    axes = axes_by_dim[len(shape)]
    features = shape[1] if axes == "channels_first" else shape[-1]
    if axes is None or (widths is not None and features not in widths):
        options = "; ".join(f'layout="{key}" for {text}' for key, text in DESCRIPTIONS.items())
        raise ValueError(
            f"layer {name!r} ({kind}) gives shape {shape}. Which axis holds the tokens is not "
            f"certain; pass {options}"
        )
    if axes == "length_first" and len(shape) != 3:
        raise ValueError(f'layout="length_first" means (L, M, C), but {name!r} gives {shape}')
    layout = Layout(axes, skip)
    tokens = math.prod(layout.token_shape(output)[1:])
    if skip >= tokens > 0:
        raise ValueError(
            f"skip_tokens={skip} leaves no tokens: layer {name!r} gives shape {shape}, which has "
            f"{tokens}"
        )
    return layout


_CHANNELS_FIRST: dict[type[nn.Module], int | None] = {
    **dict.fromkeys((nn.Conv1d, nn.ConvTranspose1d), 3),
    **dict.fromkeys((nn.Conv2d, nn.ConvTranspose2d, nn.BatchNorm2d, nn.InstanceNorm2d), 4),
    **dict.fromkeys((nn.Conv3d, nn.ConvTranspose3d, nn.BatchNorm3d, nn.InstanceNorm3d), 5),
    **dict.fromkeys((nn.BatchNorm1d, nn.InstanceNorm1d), 3),
    **dict.fromkeys((nn.GroupNorm, nn.SyncBatchNorm), None),
}
"""Modules whose features are on axis 1, with the number of axes of a batch (None: any)."""

_CHANNELS_LAST = {nn.Linear, nn.LayerNorm, nn.RMSNorm, nn.Embedding}


def infer_axes(module: nn.Module, root: nn.Module, dim: int) -> Axes | None:
    """The axes of an output with `dim` dimensions if they are certain, otherwise None.

    The leaves inside the layer must agree: convolutions and batch norms put features on axis 1,
    linear layers and layer norms on the last one. Only exact types count, since a subclass may
    permute. Layers with both kinds of leaves or with neither are not certain. Nor are sequences in
    a model with an attention or recurrent layer that has `batch_first=False`, whose first axis may
    be the length.
    """
    leaves = list(_last_leaves(module))
    first = [leaf for leaf in leaves if type(leaf) in _CHANNELS_FIRST]
    last = [leaf for leaf in leaves if type(leaf) in _CHANNELS_LAST]
    if first and not last:
        expected = {_CHANNELS_FIRST[type(leaf)] for leaf in first} - {None}
        return "channels_first" if expected <= {dim} else None
    if last and not first:
        if any(len(getattr(leaf, "normalized_shape", "1")) > 1 for leaf in last):
            return None  # a norm over several axes does not tell which one holds the features
        kinds = (nn.MultiheadAttention, nn.RNNBase)
        sequential = (m for m in root.modules() if isinstance(m, kinds))
        length_first = any(not module.batch_first for module in sequential)
        return None if dim == 3 and length_first else "channels_last"
    return None


def feature_widths(module: nn.Module) -> set[int]:
    """Numbers of features that the leaves which shape a layer's output produce."""
    names = ("out_features", "out_channels", "num_features", "num_channels", "embedding_dim")
    widths: set[int] = set()
    for leaf in _last_leaves(module):
        widths.update(getattr(leaf, name) for name in names if hasattr(leaf, name))
        widths.update(getattr(leaf, "normalized_shape", ())[-1:])
    return widths


def _last_leaves(module: nn.Module) -> Iterator[nn.Module]:
    """The leaves that shape the output; in a Sequential, those of its last telling child."""
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
    """All modules below that have no children."""
    return (leaf for leaf in module.modules() if next(leaf.children(), None) is None)


_SHAPE_KEEPING = {
    *(nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.PReLU, nn.ELU, nn.GELU, nn.SiLU, nn.Mish, nn.Tanh),
    *(nn.Sigmoid, nn.Hardswish, nn.Softplus, nn.Identity, nn.Dropout, nn.Dropout2d),
}
