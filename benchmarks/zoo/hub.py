"""Every text, vision and audio family of transformers, from tiny configurations."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from benchmarks.zoo.tiny import VOCABULARY, tiny_config
from benchmarks.zoo.truth import FEW, SAMPLES, Batch, Subject, call

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
LENGTHS = (11, 7)
DECODER_LENGTHS = (9, 6)
WAVES = (320 * 13 + 80, 320 * 8 + 80)
FRAMES = (96, 64)


def family_names() -> list[tuple[str, str]]:
    """Each folder of models, with a model type and class per kind of input: `folder`, `type:Class`."""
    from transformers.models.auto import configuration_auto, modeling_auto

    folders: dict[tuple[str, str], str] = {}
    for mapping in MAPPINGS:
        for type_, classes in getattr(modeling_auto, f"{mapping}_MAPPING_NAMES").items():
            name = classes if isinstance(classes, str) else classes[0]
            folder = configuration_auto.model_type_to_module_name(type_)
            if mapping == "MODEL" or not any(known == folder for known, _ in folders):
                folders.setdefault((folder, name), f"{type_}:{name}")
    return sorted((folder, name) for (folder, _), name in folders.items())


def hub_subject(name: str) -> Subject:
    """The subject of `type:Class`."""
    import transformers
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    type_, _, class_name = name.partition(":")
    class_ = getattr(transformers, class_name)
    kind = KINDS.get(class_.main_input_name)
    if kind is None:
        raise ValueError(f"its main input is {class_.main_input_name}")
    config_class = getattr(class_, "config_class", None) or CONFIG_MAPPING[type_]

    def make(image: int = 32) -> nn.Module:
        torch.manual_seed(0)
        config = tiny_config(config_class, image)
        config._attn_implementation = "eager"
        model: nn.Module = class_(config)
        return model.double().train()

    return {"text": _text, "image": _image, "audio": _audio}[kind](make, class_.main_input_name)


def _first(offers: Iterator[Subject]) -> Subject:
    """The first of several subjects that runs."""
    problem: Exception | None = None
    for subject in offers:
        try:
            with torch.no_grad():
                for size in (1, 0):
                    call(subject.build(size), subject.inputs(FEW, size))
        except Exception as error:  # whatever a model raises for inputs that it does not take
            problem = problem or error
            continue
        return subject
    assert problem is not None
    raise problem


def _text(make: Callable[..., nn.Module], main: str) -> Subject:
    model: Any = make()
    decoder = bool(model.config.is_encoder_decoder)

    def inputs(samples: int, size: int) -> Batch:
        generator = torch.Generator().manual_seed(size)

        def words(length: int) -> torch.Tensor:
            return torch.randint(10, VOCABULARY - 10, (samples, length), generator=generator)

        batch = {"input_ids": words(LENGTHS[size])}
        if decoder:
            batch["decoder_input_ids"] = words(DECODER_LENGTHS[size])
        return batch

    def padded(samples: int) -> Batch:
        batch = dict(inputs(samples, 0))  # type: ignore[arg-type]
        batch["attention_mask"] = _mask(samples, *LENGTHS)
        if decoder:
            batch["decoder_attention_mask"] = _mask(samples, *DECODER_LENGTHS)
        return batch

    return _first(iter([Subject(lambda size: model, inputs, None, padded)]))


def _mask(samples: int, full: int, short: int) -> torch.Tensor:
    mask = torch.ones(samples, full, dtype=torch.long)
    mask[1:, short:] = 0
    return mask


def _image(make: Callable[..., nn.Module], main: str) -> Subject:
    def offers() -> Iterator[Subject]:
        for usual, other in ((32, 64), (64, 128), (224, 448)):
            pair: tuple[Any, Any] = tuple(make(size) for size in (usual, other))
            channels = getattr(pair[0].config, "num_channels", 3)

            def inputs(samples: int, size: int, usual: int = usual, c: int = channels) -> Batch:
                generator = torch.Generator().manual_seed(size)
                shape = (samples, c, *[usual * (size + 1)] * 2)
                return {main: torch.randn(shape, generator=generator, dtype=torch.float64)}

            yield Subject(lambda size, pair=pair: pair[size], inputs, 4.0)

    return _first(offers())


def _audio(make: Callable[..., nn.Module], main: str) -> Subject:
    model: Any = make()
    bins = next(
        (
            getattr(model.config, name)
            for name in ("num_mel_bins", "feature_size", "input_feat_per_channel", "n_mels")
            if getattr(model.config, name, None)
        ),
        80,
    )
    shapes: list[Callable[[int], tuple[int, ...]]] = [
        lambda size: (WAVES[size],),
        lambda size: (FRAMES[size], bins),
        lambda size: (bins, FRAMES[size]),
        lambda size: (1, WAVES[size]),
        lambda size: (1, FRAMES[size], bins),
    ]
    if main == "input_features":
        shapes = shapes[1:]

    def offers() -> Iterator[Subject]:
        for shape in shapes:

            def inputs(samples: int, size: int, shape: Any = shape) -> Batch:
                generator = torch.Generator().manual_seed(size)
                values = torch.randn(samples, *shape(size), generator=generator, dtype=torch.float64)
                batch = {main: values}
                if model.config.is_encoder_decoder:
                    length = DECODER_LENGTHS[size]
                    batch["decoder_input_ids"] = torch.randint(
                        10, VOCABULARY - 10, (samples, length), generator=generator
                    )
                return batch

            def padded(samples: int, shape: Any = shape, inputs: Any = inputs) -> Batch:
                batch = dict(inputs(samples, 0))
                axis = next(i for i, (a, b) in enumerate(zip(shape(0), shape(1))) if a != b)
                full, short = shape(0)[axis], shape(1)[axis]
                batch["attention_mask"] = _mask(samples, full, short)
                if model.config.is_encoder_decoder:
                    batch["decoder_attention_mask"] = _mask(samples, *DECODER_LENGTHS)
                return batch

            yield Subject(lambda size: model, inputs, None, padded)

    return _first(offers())
