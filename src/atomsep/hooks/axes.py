"""Which axis of a layer's output holds the tokens, as far as the layer's modules tell."""

from __future__ import annotations

from torch import nn

from atomsep.core.layout import Axes

_CHANNELS_FIRST: dict[type[nn.Module], int | None] = {
    **dict.fromkeys((nn.Conv1d, nn.ConvTranspose1d, nn.BatchNorm1d, nn.InstanceNorm1d), 3),
    **dict.fromkeys((nn.Conv2d, nn.ConvTranspose2d, nn.BatchNorm2d, nn.InstanceNorm2d), 4),
    **dict.fromkeys((nn.Conv3d, nn.ConvTranspose3d, nn.BatchNorm3d, nn.InstanceNorm3d), 5),
    **dict.fromkeys((nn.GroupNorm, nn.SyncBatchNorm), None),
}
"""Modules whose features are on axis 1, with the number of axes of a batch (None: any)."""

_BATCHES = {
    *((nn.Conv1d, 3), (nn.Conv2d, 4), (nn.Conv3d, 5)),
    *((nn.ConvTranspose1d, 3), (nn.ConvTranspose2d, 4), (nn.ConvTranspose3d, 5)),
}
"""Modules that also take a single sample, with the number of axes of a batch."""

_SEQUENCES = (nn.MultiheadAttention, nn.LSTM, nn.GRU, nn.RNN)
"""Modules that say with `batch_first` which axis of a sequence holds the samples."""

_BLOCKS = (nn.TransformerEncoderLayer, nn.TransformerDecoderLayer)
"""Modules whose attention says so for them."""

_STACKS = (nn.TransformerEncoder, nn.TransformerDecoder)
"""Modules whose layers say so for them."""

_PRODUCTS = {nn.Linear, nn.modules.linear.NonDynamicallyQuantizableLinear}
"""Modules that work on the last axis, whatever it holds."""

_CHANNELS_LAST = {
    *_PRODUCTS,
    *(nn.LayerNorm, nn.RMSNorm, nn.Embedding, *_SEQUENCES[1:]),
}


def infer_axes(module: nn.Module, root: nn.Module, dim: int) -> Axes | None:
    """The axes of an output with `dim` dimensions if the modules' types tell, otherwise None.

    Sequences in a model with an attention or recurrent layer that has `batch_first=False`, whose
    first axis may be the length, are not certain; the output of such a layer itself is.
    """
    axis = feature_axis(module, dim)
    if axis == 1:
        return "channels_first"
    if axis is None:
        return None
    first = batch_first(module)
    if dim == 3 and first is not None:
        return "channels_last" if first else "length_first"
    return None if dim == 3 and length_may_be_first(root) else "channels_last"


def feature_axis(module: nn.Module, dim: int) -> int | None:
    """The axis of an output with `dim` dimensions that holds the features, if the types tell.

    The leaves inside the layer must agree: convolutions and batch norms put features on axis 1,
    linear layers and layer norms on the last one. Only exact types count, since a subclass may
    permute. Layers with both kinds of leaves or with neither are not certain.
    """
    leaves = _last_leaves(module)
    first = [leaf for leaf in leaves if type(leaf) in _CHANNELS_FIRST]
    last = [leaf for leaf in leaves if type(leaf) in _CHANNELS_LAST]
    if first and not last:
        expected = {_CHANNELS_FIRST[type(leaf)] for leaf in first} - {None}
        return 1 if expected <= {dim} else None
    if last and not first:
        # A norm over several axes does not tell which one holds the features.
        several = any(len(getattr(leaf, "normalized_shape", "1")) > 1 for leaf in last)
        return None if several else dim - 1
    return None


def lacks_batch_axis(module: nn.Module, dim: int) -> bool:
    """Whether an output with `dim` dimensions is that of a convolution without a batch axis.

    Example:
        >>> lacks_batch_axis(nn.Conv1d(3, 8, 3), 2), lacks_batch_axis(nn.Conv1d(3, 8, 3), 3)
        (True, False)
    """
    last: nn.Module | None = module
    while type(last) is nn.Sequential:
        children = reversed(list(last))
        last = next((child for child in children if type(child) not in _SHAPE_KEEPING), None)
    return last is not None and (type(last), dim + 1) in _BATCHES


def may_mix_tokens(module: nn.Module) -> bool:
    """Whether only linear layers, or nothing, among the leaves tell where the features are."""
    telling = {type(leaf) for leaf in _last_leaves(module)} & {*_CHANNELS_FIRST, *_CHANNELS_LAST}
    return telling <= _PRODUCTS


def batch_first(module: nn.Module) -> bool | None:
    """Whether the first axis of an attention, transformer or recurrent layer holds the samples.

    Only exact types of transformer layers count, since a subclass may permute.

    Example:
        >>> batch_first(nn.TransformerEncoderLayer(8, 2)), batch_first(nn.Linear(8, 8))
        (False, None)
    """
    if type(module) is nn.Transformer:
        return bool(module.batch_first)
    if type(module) in _STACKS:
        module = next(iter(module.layers), module)  # type: ignore[arg-type]
    if type(module) in _BLOCKS:
        module = module.self_attn  # type: ignore[assignment]
    return bool(module.batch_first) if isinstance(module, _SEQUENCES) else None


def length_may_be_first(root: nn.Module) -> bool:
    """Whether some attention or recurrent layer has `batch_first=False`."""
    return any(batch_first(module) is False for module in root.modules())


def feature_widths(module: nn.Module) -> set[int]:
    """Numbers of features that the leaves which shape a layer's output produce."""
    names = ("out_features", "out_channels", "num_features", "num_channels", "embedding_dim")
    widths: set[int] = set()
    for leaf in _last_leaves(module):
        if isinstance(leaf, nn.RNNBase):
            directions = 2 if leaf.bidirectional else 1
            widths.add(directions * (leaf.proj_size or leaf.hidden_size))
        widths.update(getattr(leaf, name) for name in names if hasattr(leaf, name))
        widths.update(getattr(leaf, "normalized_shape", ())[-1:])
    return widths


def _last_leaves(module: nn.Module) -> list[nn.Module]:
    """The leaves that shape the output; in a Sequential, those of its last telling child."""
    if not isinstance(module, nn.Sequential):
        return [leaf for leaf in module.modules() if next(leaf.children(), None) is None]
    for child in reversed(list(module)):
        leaves = _last_leaves(child)
        if any(type(leaf) in (*_CHANNELS_FIRST, *_CHANNELS_LAST) for leaf in leaves):
            return leaves
        if type(child) not in _SHAPE_KEEPING:
            break
    return []


_SHAPE_KEEPING = {
    *(nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.PReLU, nn.ELU, nn.GELU, nn.SiLU, nn.Mish, nn.Tanh),
    *(nn.Sigmoid, nn.Hardswish, nn.Softplus, nn.Identity, nn.Dropout, nn.Dropout2d),
}
