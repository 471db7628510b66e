"""Tiny configurations of transformers' models, by rules about the names of their fields."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

VOCABULARY, POSITIONS, LAYERS = 128, 512, 2


@dataclass(frozen=True)
class Scale:
    """How far the widths shrink.

    Attributes:
        hidden: features of a token; None keeps all widths.
        heads: heads of attention.
        pairs: heads of keys and values.
        head: features of a head; None keeps them.
    """

    hidden: int | None = 32
    heads: int = 4
    pairs: int = 2
    head: int | None = 8


SCALES = (
    Scale(),
    Scale(pairs=4),
    Scale(hidden=256, pairs=4, head=None),
    Scale(hidden=None),
)
"""In the order in which they are tried: models ask for different proportions."""

_KEPT = (
    r".*(num_labels|num_channels|in_chans|sampling_rate|feat_extract_layers|type_vocab.*|adapter.*)"
)
_COUNTS: list[tuple[str, int]] = [
    (r"(.*_)?vocab_size.*|.*vocabulary.*|.*codebook_size|num_embeddings", VOCABULARY),
    (
        r"max_position.*|n_positions|n_ctx|max_.*positions|max_seq.*|.*max_length|block_size",
        POSITIONS,
    ),
    (r".*(n_group|topk_group)", 1),
    (r".*(experts_per_tok|top_?k|moe_k).*", 2),
    (r".*(n|num).*experts|.*num_experts.*", 4),
    (r".*num.*(layers|blocks)|.*n_layers?|.*layers|depth|num_hidden_groups", LAYERS),
]
"""What a number becomes whose field's name matches; the first rule counts."""

_WIDTHS = (
    r".*(hidden|model|embed|embd|emb|projection|proj|width|channels|out_features|dim|rnn|inner|"
    r"intermediate|ffn|mlp|feed_forward|d_ff)(_?(size|dim|width|channels|features))?|n_inner|n_embed"
)


def tiny_config(kind: type, image: int = 32, frames: int = 96, scale: Scale = SCALES[0]) -> Any:
    """A small configuration of a class, for images and spectra of a size."""
    values = _shrink(kind(), image, scale)
    if "max_source_positions" in values:  # half as many as frames, by a convolution
        values["max_source_positions"] = frames // 2
    return kind(**values)


def _shrink(config: Any, image: int, scale: Scale) -> dict[str, Any]:
    """The values of a configuration that become smaller."""
    found: dict[str, Any] = {}
    values = {name: value for name, value in vars(config).items() if not name.startswith("_")}
    depths = (values.get(name) for name in ("num_hidden_layers", "n_layer", "num_layers"))
    depth = next((value for value in depths if isinstance(value, int)), 0)
    staged = any(name in values for name in ("depths", "layers_per_stage", "depth"))
    for name in getattr(config, "sub_configs", {}):
        part = values.pop(name, None)
        if hasattr(part, "to_dict"):
            found[name] = {**_shrink(part, image, scale), "model_type": part.model_type}
    for name, value in values.items():
        if type(value) in (list, tuple) and len(value) == depth > LAYERS and not staged:
            value = type(value)([value[0], value[-1]])  # one entry per layer
            found[name] = value
        made = _smaller(name, value, image, scale)
        if made is not None and not (staged and name in ("num_layers", "num_hidden_layers")):
            found[name] = made
    if "expand" in values and "num_heads" in found:  # of a state space model
        found["num_heads"] = values["expand"] * found["hidden_size"] // found["head_dim"]
    for name, value in values.items():
        if re.search(r"token_(id|index)$", name) and type(value) is int and value >= VOCABULARY:
            found[name] = {"pad": 0, "bos": 1, "eos": 2}.get(name.split("_")[0], 3)
    return found


def _smaller(name: str, value: Any, image: int, scale: Scale) -> Any:
    if isinstance(value, float) and re.search(r"drop|mask_.*prob", name):
        return 0.0
    if name == "use_cache":
        return False
    if name in ("image_size", "img_size", "input_size"):
        return type(value)([image] * len(value)) if isinstance(value, (list, tuple)) else image
    if isinstance(value, (list, tuple)):
        whole = len(value) > 0 and all(type(entry) is int for entry in value)
        return _smaller_list(name, value, scale) if whole else None
    if value is None and name in ("vocab_size", "n_routed_experts", "head_dim"):
        value = 128  # what has to be given
    if type(value) is not int or re.fullmatch(_KEPT, name) or re.search(r"(id|index|idx)$", name):
        return None
    if name == "patch_size":
        return min(value, 8)
    for pattern, small in _COUNTS:
        if re.fullmatch(pattern, name):
            return min(value, small)
    if scale.hidden is None:
        return None
    if re.fullmatch(r"mamba_(n|num)_heads", name):
        return 2 * scale.hidden // (scale.head or 64)
    if re.fullmatch(r".*(kv|key_value)_?heads.*|multi_query_group_num", name):
        return min(value, scale.pairs)
    if "heads" in name or re.fullmatch(r".*n_head", name):
        return min(value, scale.heads)
    if re.fullmatch(r".*(head_dim|d_head|d_kv|head_size)|kv_channels", name):
        return min(value, scale.head or 64)
    if re.fullmatch(r".*_rank|.*state_size|.*d_state", name):
        return min(value, 8)
    if re.fullmatch(_WIDTHS, name):
        wide = re.search(r"inter|inner|ffn|mlp|feed|d_ff", name)
        return min(value, 2 * scale.hidden if wide else scale.hidden)
    return None


def _smaller_list(name: str, value: Any, scale: Scale) -> Any:
    kind = type(value)
    if re.search(r"depth|layers|blocks", name):
        return kind(min(2, each) for each in value)
    if scale.hidden is None:
        return None
    if "heads" in name:
        return kind(1 for _ in value)
    if re.search(r"size|dim|channels|width|hidden|features", name) and max(value) > 64:
        return kind(max(8, each * 64 // max(value) // 8 * 8) for each in value)
    return None
