"""Every text, vision and audio family of transformers, from tiny configurations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import torch
from torch import nn

from benchmarks.zoo.tiny import SCALES, VOCABULARY, tiny_config
from benchmarks.zoo.truth import Batch, Subject

MAPPINGS = (
    *("MODEL", "MODEL_FOR_TEXT_ENCODING", "MODEL_FOR_CAUSAL_LM", "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM"),
    *("MODEL_FOR_IMAGE_CLASSIFICATION", "MODEL_FOR_BACKBONE", "MODEL_FOR_AUDIO_CLASSIFICATION"),
    *("MODEL_FOR_CTC", "MODEL_FOR_SPEECH_SEQ_2_SEQ"),
)
"""The auto classes, in the order in which a family's model is taken from them."""

KINDS = {
    "input_ids": "text",
    "pixel_values": "image",
    "input_values": "audio",
    "input_features": "audio",
}
MOST = 3e7
"""Parameters that a model may have."""

LENGTHS = (11, 7)
DECODER_LENGTHS = (9, 6)
WAVES = (320 * 13 + 80, 320 * 8 + 80)
FRAMES = (96, 64)


def family_names() -> list[tuple[str, str]]:
    """The models of each folder as `type:Class`; of composed models, only the parts."""
    from transformers.models.auto import configuration_auto, modeling_auto

    folders: dict[tuple[str, str], str] = {}
    for mapping in MAPPINGS:
        for type_, classes in getattr(modeling_auto, f"{mapping}_MAPPING_NAMES").items():
            name = classes if isinstance(classes, str) else classes[0]
            folder = configuration_auto.model_type_to_module_name(type_)
            if mapping == "MODEL" or not any(known == folder for known, _ in folders):
                folders.setdefault((folder, name), f"{type_}:{name}")
    parts = Counter(folder for folder, _ in folders)
    whole = {
        (folder, name): model
        for (folder, name), model in folders.items()
        if parts[folder] > 1 and model.partition(":")[0].replace("-", "_") == folder
    }
    return sorted((key[0], model) for key, model in folders.items() if key not in whole)


def hub_subjects(name: str) -> Iterator[Subject]:
    """The model of `type:Class` in one scale after the other."""
    import transformers
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    type_, _, class_name = name.partition(":")
    class_ = getattr(transformers, class_name)
    kind = KINDS.get(class_.main_input_name)
    if kind is None:
        raise ValueError(f"its main input is {class_.main_input_name}")
    config_class = getattr(class_, "config_class", None) or CONFIG_MAPPING[type_]

    offer = {"text": _text, "image": _image, "audio": _audio}[kind]
    for scale in SCALES:

        def make(image: int = 32, frames: int = 96, scale: Any = scale) -> nn.Module:
            torch.manual_seed(0)
            config = tiny_config(config_class, image, frames, scale)
            config._attn_implementation = config._experts_implementation = "eager"
            model: nn.Module = class_(config)
            if sum(p.numel() for p in model.parameters()) > MOST:
                raise ValueError(f"its smallest configuration has over {MOST:.0e} parameters")
            return model.double().train()

        yield from offer(make, class_.main_input_name)


def _text(make: Callable[..., nn.Module], main: str) -> Iterator[Subject]:
    build: Any = cache(make)

    def inputs(samples: int, size: int) -> Batch:
        torch.manual_seed(size)
        batch = {main: _words(samples, LENGTHS[size])}
        if build().config.is_encoder_decoder:
            batch["decoder_input_ids"] = _words(samples, DECODER_LENGTHS[size])
        return batch

    def padded(samples: int) -> Batch:
        return _padded(inputs(samples, 0), LENGTHS)

    yield Subject(lambda size: build(), inputs, None, padded)


def _image(make: Callable[..., nn.Module], main: str) -> Iterator[Subject]:
    for usual in (32, 64, 224):
        build: Any = cache(lambda size, usual=usual: make(usual * (size + 1)))

        def inputs(samples: int, size: int, usual: int = usual, build: Any = build) -> Batch:
            torch.manual_seed(size)
            channels = getattr(build(size).config, "num_channels", 3)
            shape = (samples, channels, *[usual * (size + 1)] * 2)
            return {main: torch.randn(shape, dtype=torch.float64)}

        yield Subject(build, inputs, 4.0)


def _audio(make: Callable[..., nn.Module], main: str) -> Iterator[Subject]:
    """Waves, and spectra with their bins last or first."""
    build: Any = cache(lambda size: make(frames=FRAMES[size]))
    names = ("num_mel_bins", "feature_size", "input_feat_per_channel", "n_mels", "input_dim")
    forms = ["wave", "rows", "columns", "one wave", "one picture"]
    for form in forms if main == "input_values" else forms[1:3]:

        def inputs(samples: int, size: int, form: str = form) -> Batch:
            torch.manual_seed(size)
            config = build(size).config
            bins = next((getattr(config, name) for name in names if hasattr(config, name)), 80)
            shape: tuple[int, ...] = {
                "wave": (WAVES[size],),
                "rows": (FRAMES[size], bins),
                "columns": (bins, FRAMES[size]),
                "one wave": (1, WAVES[size]),
                "one picture": (1, FRAMES[size], bins),
            }[form]
            batch = {main: torch.randn(samples, *shape, dtype=torch.float64)}
            if config.is_encoder_decoder:
                batch["decoder_input_ids"] = _words(samples, DECODER_LENGTHS[size])
            return batch

        def padded(samples: int, inputs: Any = inputs, form: str = form) -> Batch:
            return _padded(inputs(samples, 0), WAVES if "wave" in form else FRAMES)

        yield Subject(build, inputs, None, padded)


def _words(samples: int, length: int) -> torch.Tensor:
    return torch.randint(10, VOCABULARY - 10, (samples, length))


def _padded(batch: Batch, lengths: tuple[int, int]) -> Batch:
    """A batch with the masks of samples that are short, all but the first."""
    assert isinstance(batch, dict)
    samples = len(next(iter(batch.values())))
    masks = {"attention_mask": _mask(samples, *lengths)}
    if "decoder_input_ids" in batch:
        masks["decoder_attention_mask"] = _mask(samples, *DECODER_LENGTHS)
    return {**batch, **masks}


def _mask(samples: int, full: int, short: int) -> torch.Tensor:
    mask = torch.ones(samples, full, dtype=torch.long)
    mask[1:, short:] = 0
    return mask
