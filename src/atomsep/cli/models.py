"""Models by name, with a batch to try them on: torchvision, timm, Hugging Face, your own."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from atomsep.experiments.entry_points import call_entry_point, is_entry_point, is_module
from atomsep.experiments.errors import ExperimentError, unknown

if TYPE_CHECKING:
    from torch import nn

SAMPLES = 5
"""Samples in the batch, a number that hardly any other size has."""


CLOSE = 0.8
"""Similarity from which a name counts as misspelt, and is not looked for on the hub."""


def find_model(name: str) -> tuple[nn.Module, Any]:
    """The model of a name, without weights, and a batch of noise for it.

    Raises:
        ExperimentError: no model has that name, or it cannot be built.
    """
    if is_entry_point(name):
        return _own(name)
    if (Path(name) / "config.json").exists():
        return _hugging_face(name)
    import torch
    from torchvision import models

    if name in models.list_models(module=models):
        size = 299 if name.startswith("inception") else 224
        return models.get_model(name, weights=None), torch.randn(SAMPLES, 3, size, size)
    known = models.list_models(module=models)
    try:
        import timm
    except ModuleNotFoundError:
        pass
    else:
        if name.partition(".")[0] in timm.list_models():
            model: Any = timm.create_model(name)
            return model, torch.randn(SAMPLES, *model.default_cfg["input_size"])
        known = [*known, *timm.list_models()]
    if "/" not in name and difflib.get_close_matches(name, known, 1, CLOSE):
        # A misspelt name, which would make the hub's client try again and again.
        sought = unknown("model", name, known, "in torchvision or timm")
        raise ExperimentError(f"{sought}. For a Hugging Face model, write OWNER/NAME")
    if is_module(name):
        raise ExperimentError(
            f"{name} is a module; name the function in it that returns a model and an example "
            f"batch: {name}:FUNCTION. For a Hugging Face model, write OWNER/NAME"
        )
    try:
        return _hugging_face(name)
    except ModuleNotFoundError:
        if "/" in name:
            raise
        raise unknown("model", name, known, "in torchvision or timm") from None
    except ExperimentError as error:
        if "/" in name:
            raise
        # A name of the hub without an owner, or a misspelt one: the advice for both.
        sought = unknown("model", name, known, "in torchvision or timm")
        raise ExperimentError(f"{sought}. {error}") from error


def _own(name: str) -> tuple[nn.Module, Any]:
    from torch import nn

    made = call_entry_point("", name)
    if not (isinstance(made, tuple) and len(made) == 2 and isinstance(made[0], nn.Module)):
        raise ExperimentError(
            f"{name} must return a model and an example batch, not {type(made).__name__}"
        )
    return made


def _hugging_face(name: str) -> tuple[nn.Module, Any]:
    """The model of a folder or of the hub, from its configuration alone."""
    from transformers import AutoConfig, AutoModel

    try:
        model = AutoModel.from_config(AutoConfig.from_pretrained(name))
    except (OSError, ValueError) as error:
        line = str(error).strip().splitlines()[0]
        raise ExperimentError(f"{name} cannot be loaded from Hugging Face: {line}") from error
    return model, _batch(model)


def _batch(model: Any) -> dict[str, Any]:
    """Noise in the shape of the model's main input."""
    import torch

    config, main = model.config, model.main_input_name
    if main == "pixel_values":
        size = getattr(config, "image_size", 224)
        height, width = (size, size) if isinstance(size, int) else size
        return {main: torch.randn(SAMPLES, getattr(config, "num_channels", 3), height, width)}
    if main == "input_values":
        return {main: torch.randn(SAMPLES, 16000)}
    if main != "input_ids":
        raise ExperimentError(
            f"no batch is known for {main}, the input of {type(model).__name__}; write a function "
            f"that returns the model and a batch, and pass package.module:function"
        )
    words = torch.randint(getattr(config, "vocab_size", 100), (SAMPLES, 11))
    batch = {main: words, "attention_mask": torch.ones_like(words)}
    if config.is_encoder_decoder:
        batch["decoder_input_ids"] = words[:, :9]
    return batch
