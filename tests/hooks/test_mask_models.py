"""The mask that reaches a layer of models nobody here wrote, against one given by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from masked_models import SMALL, check, drawn, lengths, numbers, words
from torch import Tensor, nn

import atomsep
from atomsep.hooks.mask_hosts import _kinds


@pytest.mark.parametrize("given", ["keyword", "position", "float"])
def test_bert(given: str) -> None:
    import transformers

    model = drawn(transformers.BertModel(transformers.BertConfig(**SMALL)))
    ids, mask = words(7), lengths(7, 4, 2, length=7)
    for layer in ("encoder.layer.0", "embeddings.word_embeddings"):
        if given == "keyword":
            check(model, layer, lambda: model(ids, attention_mask=mask), mask)
        elif given == "position":
            check(model, layer, lambda: model(ids, mask), mask)
        else:
            check(model, layer, lambda: model(ids, mask.double()), mask)


@pytest.mark.parametrize("named", [None, "attention_mask"])
def test_a_module_inside_that_gets_no_mask_erases_none(named: str | None) -> None:
    """BigBird hands its block-sparse layers the mask under other names, and None as its own."""
    import transformers

    config = transformers.BigBirdConfig(
        **SMALL, attention_type="block_sparse", block_size=2, num_random_blocks=1
    )
    model = drawn(transformers.BigBirdModel(config))
    ids, mask = words(20), lengths(20, 17, 15, length=20)

    def run() -> Any:
        torch.manual_seed(0)  # the random blocks
        return model(ids, attention_mask=mask)

    for layer in ("encoder.layer.0", "encoder.layer.0.attention.self.query"):
        check(model, layer, run, mask, mask=named)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("kind", ["bart", "t5"])
def test_encoders_and_decoders(kind: str, masked: bool) -> None:
    """Of the same length, so that the other's mask would fit."""
    import transformers

    if kind == "bart":
        config = transformers.BartConfig(
            vocab_size=30, d_model=8, encoder_layers=1, decoder_layers=1, dropout=0.0,
            encoder_attention_heads=2, decoder_attention_heads=2, encoder_ffn_dim=16,
            decoder_ffn_dim=16, max_position_embeddings=20,
        )  # fmt: skip
        model = drawn(transformers.BartForConditionalGeneration(config))
        layers = ["model.encoder.layers.0", "model.decoder.layers.0"]
        layers += ["model.decoder.layers.0.encoder_attn", "lm_head"]
    else:
        config = transformers.T5Config(
            vocab_size=30, d_model=8, d_kv=4, d_ff=16, num_layers=1, num_heads=2,
            decoder_start_token_id=0, dropout_rate=0.0,
        )  # fmt: skip
        model = drawn(transformers.T5ForConditionalGeneration(config))
        layers = ["encoder.block.0", "decoder.block.0", "decoder.block.0.layer.1", "lm_head"]
    mask, own = lengths(6, 4, 2, length=6), lengths(3, 6, 5, length=6) if masked else None
    batch = {"input_ids": words(6), "attention_mask": mask, "decoder_input_ids": words(6, 3)}

    def run() -> Any:
        return model(**batch, decoder_attention_mask=own, use_cache=False)

    for layer in layers:
        select = {} if layer == "lm_head" else {"select": 0}
        if kind == "bart" and layer.endswith("layers.0"):
            select = {}
        check(model, layer, run, mask if "encoder." in layer else own, **select)


TOWER = {key: SMALL[key] for key in list(SMALL)[1:5]}


def clip() -> Any:
    import transformers

    config = transformers.CLIPConfig(
        text_config=TOWER | {"vocab_size": 30, "max_position_embeddings": 20, "eos_token_id": 2},
        vision_config=TOWER | {"image_size": 8, "patch_size": 4},
        projection_dim=8,
    )
    return drawn(transformers.CLIPModel(config))


def test_text_and_images_of_the_same_length() -> None:
    model, pictures = clip(), numbers(3, 8, 8)
    mask = lengths(5, 4, 2, length=5)
    run = lambda: model(words(5), pictures, mask)  # noqa: E731
    check(model, "vision_model.encoder.layers.0", run, None)
    check(model, "text_model.encoder.layers.0", run, mask)
    check(model, "text_model.embeddings.token_embedding", run, mask)
    run = lambda: model(words(4), pictures, mask[:, :4])  # noqa: E731
    flat = lambda latent: latent.flatten(2).transpose(1, 2)  # noqa: E731
    patches = "vision_model.embeddings.patch_embedding"
    check(model, patches, run, None, flat, layout="channels_first")


def test_a_mask_of_text_or_images_is_not_used_where_it_may_be_of_the_text() -> None:
    class Towers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.vision = nn.Linear(8, 8)

        def forward(self, images: Tensor, text: Tensor, attention_mask: Tensor) -> Tensor:
            return self.vision(images)  # type: ignore[no-any-return]

    model, images, mask = Towers().double(), numbers(6, 8), lengths(6, 4, 2, length=6)
    attachment = atomsep.attach(model, "vision")
    with pytest.warns(atomsep.AtomWarning, match="may be that of another input, and is not used"):
        model(images, words(6), mask)
    assert (attachment.importance != 0).all()


def test_the_usual_names_of_text() -> None:
    names = "input_ids", "text", "texts", "tokens", "caption", "captions", "words"
    assert all(_kinds([name]) == {"text"} for name in names)
    assert _kinds(["token_type_ids", "attention_mask", "position_ids"]) == set()


def test_one_of_two_towers_called_alone() -> None:
    """Without a mask, which is nothing to warn of."""
    model = clip()
    model.vision_model.requires_grad_(False)
    run = lambda: model.get_text_features(words(5))  # noqa: E731
    check(model, "text_model.encoder.layers.0", run, None)


def test_a_decoder_of_text_that_looks_at_images() -> None:
    import transformers

    text = TOWER | {"vocab_size": 30, "max_position_embeddings": 20, "encoder_hidden_size": 8}
    dropped = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    config = transformers.BlipConfig(
        text_config=text | dropped | {"bos_token_id": 1, "pad_token_id": 0, "sep_token_id": 2},
        vision_config=TOWER | {"image_size": 8, "patch_size": 4},
        projection_dim=8,
    )
    model = drawn(transformers.BlipForConditionalGeneration(config))
    mask = lengths(5, 4, 2, length=5)
    run = lambda: model(numbers(3, 8, 8), words(5), mask)  # noqa: E731
    check(model, "vision_model.encoder.layers.0", run, None)
    check(model, "text_decoder.bert.encoder.layer.0", run, mask)
    check(model, "text_decoder.bert.encoder.layer.0.crossattention.self.query", run, mask)
