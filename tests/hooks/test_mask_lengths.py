"""Masks of another length than the layer's tokens: convolutions, windows, prompts, caches."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from masked_models import SMALL, check, drawn, lengths, numbers, words
from torch import Tensor, nn

import atomsep


def channels_first(latent: Tensor) -> Tensor:
    return latent.flatten(2).transpose(1, 2)


def wav2vec2() -> Any:
    import transformers

    config = transformers.Wav2Vec2Config(
        hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16,
        hidden_dropout=0.0, attention_dropout=0.0, activation_dropout=0.0, feat_proj_dropout=0.0,
        layerdrop=0.0, mask_time_prob=0.0, conv_dim=(8, 8), conv_kernel=(4, 3), conv_stride=(3, 2),
        num_conv_pos_embeddings=4, num_conv_pos_embedding_groups=2, feat_extract_norm="layer",
    )  # fmt: skip
    return drawn(transformers.Wav2Vec2Model(config))


def test_convolutions_in_front() -> None:
    """31 samples make 10 and then 4 tokens: the model's own formula for the lengths, by hand."""
    model = wav2vec2()
    sound, mask = numbers(31), lengths(31, 19, 12, length=31)
    real = lengths(*(((n - 4) // 3 + 1 - 3) // 2 + 1 for n in (31, 19, 12)), length=4)
    assert real.sum(1).tolist() == [4, 2, 1]
    run = lambda: model(sound, attention_mask=mask)  # noqa: E731
    check(model, "encoder.layers.0", run, real)
    check(model, "feature_projection.projection", run, real)
    last = "feature_extractor.conv_layers.1.conv"
    check(model, last, run, real, channels_first, layout="channels_first")
    first = "feature_extractor.conv_layers.0.conv"
    with atomsep.attach(model, first, layout="channels_first"):
        for mode in (True, False):  # in eval mode too: the end of the mask would be wrong
            model.train(mode)
            with pytest.raises(
                ValueError, match=r"attention_mask has shape \(3, 31\).*have \(3, 10\)\. Pass mask="
            ):
                run()


def test_speech_to_text() -> None:
    import transformers

    config = transformers.Speech2TextConfig(
        vocab_size=30, d_model=8, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=16, decoder_ffn_dim=16, dropout=0.0,
        max_source_positions=40, max_target_positions=20, conv_channels=8, input_feat_per_channel=6,
        input_channels=1, conv_kernel_sizes=(3,), num_conv_layers=1,
    )  # fmt: skip
    model = drawn(transformers.Speech2TextModel(config))
    mask, own = lengths(12, 8, 5, length=12), lengths(6, 2, 4, length=6)
    batch = {"attention_mask": mask, "decoder_input_ids": words(6), "decoder_attention_mask": own}
    run = lambda: model(numbers(12, 6), **batch, use_cache=False)  # noqa: E731
    check(model, "encoder.layers.0", run, lengths(6, 4, 3, length=6))
    check(model, "decoder.layers.0", run, own)
    batch["decoder_attention_mask"] = None
    check(model, "decoder.layers.0", run, None)


def test_whisper_whose_encoder_gets_no_mask() -> None:
    import transformers

    config = transformers.WhisperConfig(
        vocab_size=30, d_model=8, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=16, decoder_ffn_dim=16, dropout=0.0,
        max_source_positions=6, max_target_positions=20, num_mel_bins=5, pad_token_id=0,
        bos_token_id=1, eos_token_id=2, decoder_start_token_id=1,
    )  # fmt: skip
    model = drawn(transformers.WhisperModel(config))
    mask, own = lengths(12, 8, 5, length=12), lengths(6, 2, 4, length=6)
    batch = {"attention_mask": mask, "decoder_input_ids": words(6), "decoder_attention_mask": own}
    run = lambda: model(numbers(5, 12), **batch, use_cache=False)  # noqa: E731
    for named in (None, "attention_mask"):
        conv = {"layout": "channels_first", "mask": named}
        check(model, "encoder.conv1", run, mask, channels_first, **conv)
        check(model, "encoder.layers.0", run, lengths(6, 4, 3, length=6), mask=named)
    check(model, "decoder.layers.0", run, own)
    decoder, seen = model.decoder, numbers(6, 8)
    alone = lambda: decoder(words(6), own, encoder_hidden_states=seen, use_cache=False)  # noqa: E731
    check(decoder, "layers.0", alone, own)


def test_a_model_with_a_formula_for_its_subsampling() -> None:
    """As Parakeet and its relatives have it, around the layer that the mask is needed at."""

    class Spectra(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv1d(6, 8, 3, 2)
            self.norm = nn.LayerNorm(8)

        def _get_subsampling_output_length(self, lengths: Tensor) -> Tensor:
            return (lengths - 3) // 2 + 1

        def forward(self, spectra: Tensor, attention_mask: Tensor) -> Tensor:
            return self.norm(self.conv(spectra.mT).mT)  # type: ignore[no-any-return]

    model, mask = drawn(Spectra()), lengths(13, 8, 5, length=13)
    run = lambda: model(numbers(13, 6), attention_mask=mask)  # noqa: E731
    check(model, "norm", run, lengths(6, 3, 2, length=6))


def test_windows_that_lengthen_the_tokens() -> None:
    """Longformer pads to whole windows; its layers get numbers to add, with two axes."""
    import transformers

    config = transformers.LongformerConfig(**SMALL, attention_window=4, pad_token_id=1)
    model = drawn(transformers.LongformerModel(config))
    for name, parameter in model.named_parameters():  # whose gradients are NaN without the loss
        parameter.requires_grad_(not any(part in name for part in ("embed", "query", "key")))
    mask = lengths(7, 5, 2, length=7)
    real = torch.nn.functional.pad(mask, (0, 1))
    check(model, "encoder.layer.0", lambda: model(words(7), attention_mask=mask), real)


def test_text_followed_by_patches() -> None:
    """ViLT joins both inputs; its encoder gets a mask of both, with four axes."""
    import transformers

    config = transformers.ViltConfig(**SMALL, image_size=8, patch_size=4)
    model = drawn(transformers.ViltModel(config))
    mask = lengths(5, 4, 2, length=5)
    batch = {"input_ids": words(5), "attention_mask": mask, "pixel_values": numbers(3, 8, 8)}
    real = torch.nn.functional.pad(mask, (0, 5), value=1)

    def run() -> Any:
        torch.manual_seed(0)  # the order of the patches
        return model(**batch)

    # The class token is in the middle, so that no tokens in front are left out.
    check(model, "encoder.layer.0", run, real, skip_tokens="auto")
    check(model, "embeddings.text_embeddings.word_embeddings", run, mask)


@pytest.mark.parametrize("kind", ["prompt", "prefix"])
def test_learned_prompts(kind: str) -> None:
    import peft
    import transformers

    config = transformers.GPT2Config(
        vocab_size=30, n_embd=8, n_layer=1, n_head=2, n_positions=20, resid_pdrop=0.0,
        embd_pdrop=0.0, attn_pdrop=0.0,
    )  # fmt: skip
    tuning = peft.PromptTuningConfig if kind == "prompt" else peft.PrefixTuningConfig
    base = transformers.GPT2LMHeadModel(config)
    for parameter in base.parameters():
        parameter.requires_grad_(False)
    model = peft.get_peft_model(base, tuning(task_type="CAUSAL_LM", num_virtual_tokens=3))
    model = drawn(model)
    mask = lengths(6, 4, 2, length=6)
    real = torch.nn.functional.pad(mask, (3, 0), value=1) if kind == "prompt" else mask
    layer = "base_model.transformer.h.0"
    check(model, layer, lambda: model(words(6), attention_mask=mask).logits, real)
