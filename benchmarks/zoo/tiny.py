"""Tiny configurations of transformers' models, by rules about the names of their fields."""

from __future__ import annotations

import re
from typing import Any

HIDDEN, HEADS, LAYERS, VOCABULARY, POSITIONS = 32, 4, 2, 120, 512

RULES: list[tuple[str, int]] = [
    (r"token_type|type_vocab|_ratio|num_labels|num_channels|in_channels|in_chans|sampling_rate", -1),
    (r"vocab_size.*|.*vocab_size|.*vocabulary.*|.*codebook_size|num_embeddings", VOCABULARY),
    (r"max_position.*|n_positions|n_ctx|max_.*positions|max_seq.*|.*max_length|block_size", POSITIONS),
    (r".*(kv|key_value)_?heads.*|multi_query_group_num", HEADS // 2),
    (r".*(experts_per_tok|top_?k).*", 2),
    (r".*n_?(routed_)?experts|.*num_.*experts|n_shared_experts", 4),
    (r".*n_group|topk_group", 1),
    (r".*(num|n)_.*heads.*|.*n_heads?|.*num_heads|.*_heads", HEADS),
    (r".*num.*(layers|blocks)|.*n_layers?|.*layers|depth|num_hidden_groups", LAYERS),
    (r".*(head_dim|d_head|d_kv|head_size)|kv_channels|attention_key_channels", HIDDEN // HEADS),
    (r"qk_(nope|rope)_head_dim|v_head_dim", HIDDEN // HEADS),
    (r".*(intermediate|ffn|mlp|feed_forward|inner|d_ff).*(size|dim|channels)?|n_inner|d_ff", 48),
    (r".*(lora|latent)_rank|.*_rank|.*state_size|.*d_state|dt_rank", 8),
    (r".*(hidden|model|embed|embd|emb|projection|proj|width|channels|out_features|dim|rnn)(_?"
     r"(size|dim|width|channels|features))?|.*d_model|n_embd|n_embed|dim|width", HIDDEN),
]  # fmt: skip
"""What a number becomes whose field's name matches; the first rule counts, -1 leaves it alone."""


def tiny_config(kind: type, image: int = 32) -> Any:
    """A small configuration of a class, for images of a size."""
    config = kind()
    shrunk = _shrink(config, image)
    return kind(**shrunk)


def _shrink(config: Any, image: int) -> dict[str, Any]:
    """The values of a configuration that become smaller."""
    found: dict[str, Any] = {}
    values = {name: value for name, value in vars(config).items() if not name.startswith("_")}
    depth = next((values[n] for n in ("num_hidden_layers", "n_layer", "num_layers") if n in values), 0)
    for name in getattr(config, "sub_configs", {}):
        part = values.pop(name, None)
        if part is not None and hasattr(part, "to_dict"):
            found[name] = {**_shrink(part, image), "model_type": part.model_type}
    for name, value in values.items():
        made = _smaller(name, value, image, depth)
        if made is not None:
            found[name] = made
    for name, value in values.items():
        if re.search(r"token_(id|index)$", name) and isinstance(value, int) and value >= VOCABULARY:
            found[name] = {"pad": 0, "bos": 1, "eos": 2}.get(name.split("_")[0], 3)
    return found


def _smaller(name: str, value: Any, image: int, depth: Any) -> Any:
    if re.search(r"drop", name) and isinstance(value, float):
        return 0.0
    if name in ("use_cache", "return_dict_in_generate"):
        return False
    if isinstance(value, (list, tuple)) and value:
        if isinstance(depth, int) and len(value) == depth > LAYERS:  # one entry per layer
            return type(value)([value[0], value[-1]])
        if name in ("image_size", "input_size"):
            return [image] * len(value)
        if not all(type(entry) is int for entry in value):
            return None
        return _smaller_list(name, list(value))
    if type(value) is not int:
        return None
    if name in ("image_size", "img_size", "input_size"):
        return image
    if name == "patch_size":
        return min(value, 8)
    if name.endswith(("token_id", "token_index", "_idx")):
        return None
    for pattern, small in RULES:
        if re.fullmatch(pattern, name):
            return None if small == -1 else min(value, small)
    return None


def _smaller_list(name: str, values: list[int]) -> list[int] | None:
    if re.search(r"depth|layers|blocks", name):
        return [min(2, value) for value in values]
    if re.search(r"heads", name):
        return [1] * len(values)
    if re.search(r"size|dim|channels|width|hidden|features", name) and max(values) > 64:
        return [max(8, value * 64 // max(values) // 8 * 8) for value in values]
    return None
