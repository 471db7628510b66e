"""The UNets, transformers and autoencoders of diffusers, from tiny configurations.

Their classes take the configuration as arguments. Numbers shrink by rules about their names, and
what a forward needs is made from the names of its arguments.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from functools import cache
from importlib import import_module
from typing import Any

import torch
from torch import nn

from benchmarks.zoo.truth import Batch, Subject

MOST = 2e7
"""Parameters that a model may have."""

GROUPS = ("unets", "transformers", "autoencoders")

NUMBERS: list[tuple[str, int]] = [
    (r"caption_projection_dim", 32),
    (r".*num_.*layers|.*layers_per_block|.*num_layers|depth|.*num_.*blocks|n_layers", 1),
    (r".*num_.*heads", 2),
    (r".*head_dim", 16),
    (r".*norm_num_groups|.*num_groups", 8),
    (
        r".*(cross_attention|caption|text|joint_attention|pooled_projection|encoder_hid|clip).*dim.*",
        24,
    ),
    (
        r".*(hidden|inner|embed|time|ffn|model|base|caption).*(dim|size|channels)|.*embed_dim|base_dim",
        32,
    ),
    (r"sample_size|sample_height|sample_width", 16),
    (r".*max_seq.*|num_embeds_ada_norm|.*num_vq_embeddings", 64),
]
"""What a number of the configuration becomes whose name matches; the first rule counts."""

MISSING = {"in_channels": 8, "out_channels": 8, "sample_size": 16}
"""What a number becomes that is None, but has to be given."""

TIMES = ("timestep", "timestep_ratio", "timestep_r", "r_timestep", "t", "fps")


def diffusers_names() -> list[str]:
    """Every model of the three groups."""
    import diffusers

    names: set[str] = set()
    for group in GROUPS:
        module = import_module(f"diffusers.models.{group}")
        for name, found in vars(module).items():
            if (
                isinstance(found, type)
                and issubclass(found, nn.Module)
                and hasattr(diffusers, name)
            ):
                names.add(name)
    return sorted(names)


def diffusers_subjects(name: str) -> Iterator[Subject]:
    """The model in one form of inputs after the other, tiny and as it is by default."""
    import diffusers

    class_ = getattr(diffusers, name)
    for options in (_tiny(class_, 16), _tiny(class_, 32), {}):

        def make(options: Any = options) -> nn.Module:
            with torch.device("meta"):  # the default is often too large to be built
                if sum(p.numel() for p in class_(**options).parameters()) > MOST:
                    raise ValueError(f"it has over {MOST:.0e} parameters")
            torch.manual_seed(0)
            model: nn.Module = class_(**options)
            return model.double().train()

        yield from _subjects(cache(make))


def _tiny(class_: type, least: int) -> dict[str, Any]:
    """A small configuration, with at least so many features where they are listed."""
    found: dict[str, Any] = {}
    parameters = inspect.signature(class_).parameters
    rotary = any(re.search(r"rope|axes", name) for name in parameters)  # parts of a head's features
    for name, parameter in parameters.items():
        value = parameter.default
        if isinstance(value, (tuple, list)) and value and all(type(v) is int for v in value):
            if re.search(r"rope|axes", name):
                continue
            if re.search(r"channels|dims?$|mult", name) and max(value) > 32:
                sizes = (v * 64 // max(value) // 16 * 16 for v in value)
                found[name] = type(value)(max(least, size) for size in sizes)
            elif re.search(r"layers|depth|blocks", name):
                found[name] = type(value)(min(v, 1) for v in value)
        elif value is None and name in MISSING:
            found[name] = MISSING[name]
        elif type(value) is int and not (rotary and name.endswith("head_dim")):
            for pattern, small in NUMBERS:
                if re.fullmatch(pattern, name):
                    found[name] = min(value, small)
                    break
        elif "dropout" in name and isinstance(value, float):
            found[name] = 0.0
    return found


FORMS: list[tuple[str, float | None, list[tuple[int, ...]]]] = [
    ("map", 6.0, [(16, 16), (32, 48)]),
    ("map", 4.0, [(16, 16), (32, 32)]),
    ("map", 6.0, [(32, 32), (64, 96)]),
    ("map", 12.0, [(4, 16, 16), (8, 32, 48)]),
    ("frames", 12.0, [(4, 16, 16), (8, 32, 48)]),
    ("map", 24.0, [(1, 16, 16), (9, 32, 48)]),
    ("tokens", None, [(24,), (16,)]),
    ("map", None, [(1024,), (512,)]),
]
"""Where the channels are, how much the area grows, and sizes of the main input: pictures, films,
films with their frames first, tokens and waves."""


def _subjects(build: Callable[[], nn.Module]) -> Iterator[Subject]:
    """One form of the main input after the other, with whatever else is asked for."""
    for kind, area, sizes in FORMS:

        def inputs(samples: int, size: int, kind: str = kind, sizes: Any = sizes) -> Batch:
            torch.manual_seed(size)
            model: Any = build()
            widths = (getattr(model.config, n, None) for n in ("in_channels", "input_channels"))
            channels, (first, *rest) = next(filter(None, widths), 3), sizes[size]
            shape = (channels, first, *rest) if kind == "map" else (first, channels, *rest)
            batch: dict[str, Any] = {}
            for name, parameter in inspect.signature(model.forward).parameters.items():
                if name in ("hidden_states", "sample", "x"):
                    batch[name] = torch.randn(samples, *shape, dtype=torch.float64)
                elif name in TIMES:
                    batch[name] = torch.arange(samples) + 1
                elif parameter.default is parameter.empty or name in _WANTED:
                    made = _made(name, model.config, samples, first)
                    if made is not None:
                        batch[name] = made
            return batch

        yield Subject(lambda size: build(), inputs, area)


_WANTED = ("encoder_hidden_states", "pooled_projections", "class_labels", "img_ids", "txt_ids")


def _made(name: str, config: Any, samples: int, tokens: int) -> Any:
    """An argument beside the main one, by its name."""
    widths = (
        *("joint_attention_dim", "caption_channels", "cross_attention_dim", "text_embed_dim"),
        *("text_dim", "text_hidden_dim", "cap_feat_dim", "cross_attention_input_dim"),
    )
    width = next((getattr(config, n) for n in widths if getattr(config, n, None)), None)
    axes = len(getattr(config, "axes_dims_rope", None) or (0, 0, 0))
    if name == "encoder_hidden_states" and width is not None:
        width = width[0] if isinstance(width, (tuple, list)) else width
        return torch.randn(samples, 13, width, dtype=torch.float64)
    if name == "pooled_projections" and getattr(config, "pooled_projection_dim", None):
        return torch.randn(samples, config.pooled_projection_dim, dtype=torch.float64)
    if name == "encoder_attention_mask":
        return torch.ones(samples, 13)
    if name == "class_labels" and getattr(config, "num_embeds_ada_norm", None):
        return torch.arange(samples)
    if name in ("original_size", "target_size", "crop_coords"):
        return torch.full((samples, 2), 16.0, dtype=torch.float64)
    if name == "guidance":
        return torch.ones(samples, dtype=torch.float64)
    if name in ("img_ids", "txt_ids"):
        return torch.zeros(tokens if name == "img_ids" else 13, axes)
    return None
